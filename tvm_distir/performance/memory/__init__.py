# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the live memory of devices over time: buffers, peaks and allocators."""

from __future__ import annotations

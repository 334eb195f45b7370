# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wrap the kernels of the native simulator."""

from __future__ import annotations

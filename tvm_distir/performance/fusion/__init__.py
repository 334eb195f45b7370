# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ops grouped into the kernels that a backend launches, by profiles that are data."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sweeps of the native library over Relax functions."""

from __future__ import annotations

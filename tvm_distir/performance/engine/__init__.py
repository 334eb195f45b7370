# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wrappers of the native simulator: one per kernel, with its reference in Python."""

from __future__ import annotations

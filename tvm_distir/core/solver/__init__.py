# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Minimization of integer cost tables: elimination and dual bounds, in the native library."""

from __future__ import annotations

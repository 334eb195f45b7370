# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wrappers of the native simulator, one per kernel."""

from __future__ import annotations

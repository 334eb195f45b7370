# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wrappers of the native simulator, a wrapper per kernel."""

from __future__ import annotations

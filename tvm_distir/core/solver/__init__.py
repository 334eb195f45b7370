# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Minimize sums of integer cost tables by elimination and dual bounds, natively."""

from __future__ import annotations

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recomputation: what backward parts make again, by policies or the least within a bound."""

from __future__ import annotations

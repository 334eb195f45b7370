# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Annotate a module with the placements of a plan (level 1 to level 2)."""

from __future__ import annotations

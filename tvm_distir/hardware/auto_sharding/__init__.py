# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Finds the cheapest placements by a system's times, along all axes of a mesh at once."""

from __future__ import annotations

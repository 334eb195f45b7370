# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Engines that run level-5 modules, the collectives' meaning, and ``run`` and ``verify``."""

from __future__ import annotations

from .counts import CollectiveCount
from .layout import Entry, Port, entries, gather_outputs, shard_inputs
from .virtual import VirtualEngine

__all__ = [
    "CollectiveCount",
    "Entry",
    "Port",
    "VirtualEngine",
    "entries",
    "gather_outputs",
    "shard_inputs",
]

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Engines that run level-5 modules, the collectives' meaning, and ``run`` and ``verify``."""

from __future__ import annotations

from . import legalize
from .counts import CollectiveCount
from .layout import Entry, Port, entries, gather_outputs, shard_inputs
from .threads import ThreadsEngine
from .virtual import VirtualEngine

legalize.register()

__all__ = [
    "CollectiveCount",
    "Entry",
    "Port",
    "ThreadsEngine",
    "VirtualEngine",
    "entries",
    "gather_outputs",
    "shard_inputs",
]

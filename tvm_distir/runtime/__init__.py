# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Engines that run level-5 modules, the collectives' meaning, and ``run`` and ``verify``."""

from __future__ import annotations

from . import legalize
from .compare import OutputReport, VerifyReport
from .counts import CollectiveCount
from .engines import Engine, engine, engine_names, register_engine, run
from .layout import Entry, Port, entries, gather_outputs, shard_inputs
from .reference import Reference, strip_annotations
from .threads import ThreadsEngine, compile_entry
from .verifying import verify
from .virtual import VirtualEngine

legalize.register()

__all__ = [
    "CollectiveCount",
    "Engine",
    "Entry",
    "OutputReport",
    "Port",
    "Reference",
    "ThreadsEngine",
    "VerifyReport",
    "VirtualEngine",
    "compile_entry",
    "engine",
    "engine_names",
    "entries",
    "gather_outputs",
    "register_engine",
    "run",
    "shard_inputs",
    "strip_annotations",
    "verify",
]

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Engines that run level-5 modules, the collectives' meaning, and ``run``.

The names below load their modules when they are first used; the package's own import needs only
:mod:`.legalize`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Engine
    from .counts import CollectiveCount
    from .dist_io import entries
    from .engines import engine, engine_names, register_engine, run
    from .inputs import bind_inputs
    from .layout import Entry, Port, gather_outputs
    from .lowered import compile_entry
    from .reference import Reference, strip_annotations
    from .sharded import ShardedArray, Stored
    from .threads import ThreadsEngine
    from .virtual import VirtualEngine

_HOME = {
    "CollectiveCount": "counts",
    "Engine": "base",
    "Entry": "layout",
    "Port": "layout",
    "Reference": "reference",
    "ShardedArray": "sharded",
    "Stored": "sharded",
    "ThreadsEngine": "threads",
    "VirtualEngine": "virtual",
    "bind_inputs": "inputs",
    "compile_entry": "lowered",
    "engine": "engines",
    "engine_names": "engines",
    "entries": "dist_io",
    "gather_outputs": "layout",
    "register_engine": "engines",
    "run": "engines",
    "strip_annotations": "reference",
}

__all__ = [
    "CollectiveCount",
    "Engine",
    "Entry",
    "Port",
    "Reference",
    "ShardedArray",
    "Stored",
    "ThreadsEngine",
    "VirtualEngine",
    "bind_inputs",
    "compile_entry",
    "engine",
    "engine_names",
    "entries",
    "gather_outputs",
    "register_engine",
    "run",
    "strip_annotations",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value

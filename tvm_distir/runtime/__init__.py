# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Engines that run level-5 modules, the collectives' meaning, and ``run`` and ``verify``.

The names below load their modules when they are first used; the package's own import needs only
:mod:`.legalize`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compare import OutputReport, VerifyReport
    from .counts import CollectiveCount
    from .engines import Engine, engine, engine_names, register_engine, run
    from .layout import Entry, Port, entries, gather_outputs, shard_inputs
    from .reference import Reference, strip_annotations
    from .threads import ThreadsEngine, compile_entry
    from .verifying import verify
    from .virtual import VirtualEngine

_HOME = {
    "CollectiveCount": "counts",
    "Engine": "engines",
    "Entry": "layout",
    "OutputReport": "compare",
    "Port": "layout",
    "Reference": "reference",
    "ThreadsEngine": "threads",
    "VerifyReport": "compare",
    "VirtualEngine": "virtual",
    "compile_entry": "threads",
    "engine": "engines",
    "engine_names": "engines",
    "entries": "layout",
    "gather_outputs": "layout",
    "register_engine": "engines",
    "run": "engines",
    "shard_inputs": "layout",
    "strip_annotations": "reference",
    "verify": "verifying",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value

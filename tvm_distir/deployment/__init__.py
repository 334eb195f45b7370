# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distributed programs in folders: compiled libraries and sharded weights, to run elsewhere.

Loading and running need TVM's runtime only. The names below load their modules when they are
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint import open_weights
    from .loading import Deployment, load
    from .writing import deploy

_HOME = {
    "Deployment": "loading",
    "deploy": "writing",
    "load": "loading",
    "open_weights": "checkpoint",
}

__all__ = ["Deployment", "deploy", "load", "open_weights"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value

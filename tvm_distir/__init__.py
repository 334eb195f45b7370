# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute, lower, verify and simulate Relax modules on the stock ``apache-tvm`` wheel.

Importing the package registers the ``R.dist`` ops and the errors with TVM, and nothing else; the
stages load when they are first used.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from ._versions import check_versions as _check_versions
from .errors import DistIRError as _DistIRError

try:
    _check_versions()
except _DistIRError as _error:
    if Path(sys.argv[0]).name != "tvm-distir":
        raise
    sys.exit(str(_error))  # the command prints one message and exits 1, without a traceback


def _register() -> None:
    """Tell TVM of our errors and ops. Its runtime-only library knows no ops: nothing to add."""
    from tvm.base import _RUNTIME_ONLY

    if _RUNTIME_ONLY:
        return
    from .errors.tree import register_with_ffi
    from .ir import async_ops, ops
    from .rules.inference import register_inference

    register_with_ffi()
    async_ops.add()
    ops.register()
    register_inference()

    from .runtime import legalize

    legalize.register()


_register()

__version__ = "0.1.0"

_LAZY = {
    "Plan": "plan",
    "Program": "program",
    "System": "system",
    "ShardedArray": "runtime",
    "deploy": "deployment",
    "device_mesh": "ir",
    "distribute": "transform",
    "export": "program",
    "from_onnx": "frontend",
    "from_tvmscript": "frontend",
    "load": "deployment",
    "load_model": "frontend",
    "open_weights": "deployment",
    "run": "runtime",
    "simulate": "simulation",
    "train_step": "frontend.training",
    "verify": "verification",
    "zoo": "frontend",
}
"""Public names and the module each comes from."""

_MODULES = ("analysis", "errors", "explain", "propagation", "rules", "strategy", "transform")

__all__ = [*_LAZY, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Register engines by name, and run modules."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

from tvm.base import _RUNTIME_ONLY

from tvm_distir.execution.runtime.dispatch.packed_names import check_dispatch
from tvm_distir.execution.runtime.program.inputs import Inputs
from tvm_distir.support import EngineError, nearest

from .base import Engine

_HOME = {
    "mpi": ("mpi.engine", "MpiEngine"),
    "processes": ("processes.engine", "ProcessesEngine"),
    "threads": ("threads.engine", "ThreadsEngine"),
    "torch": ("torch.engine", "TorchEngine"),
    "virtual": ("virtual.engine", "VirtualEngine"),
    "xla": ("xla.engine", "XlaEngine"),
}
"""Module and class of each engine of ours; loaded when it is asked for."""

_WITHOUT_IR = ("threads.plain", "PlainEngine")
"""The engine virtual for compiled functions, where there is no IR to go through step by step."""

_REGISTERED: dict[str, Callable[[], Engine]] = {}


def engine_names() -> list[str]:
    """Return the names that :func:`engine` knows, sorted."""
    return sorted({*_HOME, *_REGISTERED})


def register_engine(name: str, factory: Callable[[], Engine]) -> None:
    """Add (or replace) an engine."""
    _REGISTERED[name] = factory


def engine(name: str | Engine, dispatch: str | None = None) -> Engine:
    """Make the engine of that name; an engine object is returned as it is.

    Parameters
    ----------
    name : str or Engine
    dispatch : str, optional
        The library whose kernels modules call. An engine object is copied to set it.

    Raises
    ------
    EngineError
        DIST0601 for an unknown name, DIST0623 for a library whose kernels cannot be called.
    """
    if dispatch is not None:
        check_dispatch(dispatch)
        dispatching = copy.copy(engine(name))
        dispatching.dispatch = dispatch
        return dispatching
    if not isinstance(name, str):
        return name
    if name in _REGISTERED:
        return _REGISTERED[name]()
    if name not in _HOME:
        raise EngineError(
            "DIST0601",
            f'there is no engine "{name}"',
            place="engine",
            remedy=nearest(name, engine_names()),
        )
    module, cls = _HOME[name]
    if name == "virtual" and _RUNTIME_ONLY:
        module, cls = _WITHOUT_IR
    instance: Engine = getattr(importlib.import_module(f".{module}", __package__), cls)()
    return instance


def run(
    dist: Any,
    inputs: Inputs,
    engine: str | Engine = "threads",
    outputs: str = "whole",
    *,
    dispatch: str | None = None,
    entry: str | None = None,
) -> list[Any]:
    """Run a distributed module on all its devices.

    Parameters
    ----------
    dist : IRModule or Deployment
        The module, at level 5, with ``dist.io``: the result of ``LowerDistIR``; or the result of
        :func:`tvm_distir.load`.
    inputs : sequence or mapping
        The inputs in the order of the original ``main``'s parameters, or by their names. Each is a
        full array of exactly the parameter's shape and type, which is sharded; a stored array
        (:func:`tvm_distir.open_weights`), of which only shards are read; or a
        :class:`ShardedArray`, whose parts are used as they are. For an object (``R.Any``), such as
        a cache, :class:`DeviceObjects` with an object of each device.
    engine : str or Engine
        The name of an engine, ``"threads"``, ``"processes"``, ``"virtual"``, ``"mpi"``,
        ``"torch"``, ``"xla"``, or an engine object with particular options.
    outputs : str
        ``"whole"``, or ``"sharded"`` to leave them on their ranks.
    dispatch : str, optional
        ``"torch"``: matrix products, attention and convolutions of a module call the kernels of
        PyTorch (extra ``torch``) on the same memory; results then differ from those of TVM's
        kernels by rounding.
    entry : str, optional
        The function to run, of a module with several entry points, such as ``decode``.

    Returns
    -------
    outputs : list of ndarray, or of ShardedArray
        The outputs in the order of the original function's flattened results.

    Raises
    ------
    EngineError
        DIST0601 unknown engine, DIST0602 inputs that do not fit, DIST0603 not at level 5,
        DIST0604 replicas that differ, DIST0605 a construct the engine cannot run, DIST0607
        unknown form of outputs, DIST0609 a target that is no CPU, DIST0610 to DIST0613 failures
        of ranks, DIST0623 for kernels that cannot be called.
    DependencyError
        DIST0111 for ``dispatch="torch"`` without PyTorch.
    """
    if entry is not None:
        from tvm_distir.core import keep_entry

        dist = keep_entry(dist, entry)
    return _engine(engine, dispatch).run(dist, inputs, outputs)


_engine = engine

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engines by name, and ``run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt
from tvm import ir

from ..errors import RuntimeError_, nearest
from .counts import CollectiveCount
from .threads import ThreadsEngine
from .virtual import VirtualEngine

Array = npt.NDArray[Any]


class Engine(Protocol):
    """What every engine offers.

    Attributes
    ----------
    name : str
    collectives : tuple of CollectiveCount
        What the last run executed; empty where the engine does not count.
    """

    name: str
    collectives: tuple[CollectiveCount, ...]

    def run(self, mod: ir.IRModule, inputs: Sequence[Any] | Mapping[str, Any]) -> list[Array]:
        """Run a level-5 module on whole arrays."""
        ...


_ENGINES: dict[str, Callable[[], Engine]] = {
    VirtualEngine.name: VirtualEngine,
    ThreadsEngine.name: ThreadsEngine,
}


def engine_names() -> list[str]:
    """Names that :func:`engine` knows, sorted."""
    return sorted(_ENGINES)


def register_engine(name: str, factory: Callable[[], Engine]) -> None:
    """Add (or replace) an engine."""
    _ENGINES[name] = factory


def engine(name: str | Engine) -> Engine:
    """Make the engine of that name; an engine object is returned as it is.

    Raises
    ------
    RuntimeError_
        DIST0601 for an unknown name.
    """
    if not isinstance(name, str):
        return name
    if name not in _ENGINES:
        raise RuntimeError_(
            "DIST0601", f'no engine "{name}"', place="engine", remedy=nearest(name, _ENGINES)
        )
    return _ENGINES[name]()


def run(
    dist: ir.IRModule,
    inputs: Sequence[Any] | Mapping[str, Any],
    engine: str | Engine = "threads",
) -> list[Array]:
    """Run a distributed module on all its devices.

    Parameters
    ----------
    dist : IRModule
        At level 5, with ``dist.io``: the result of ``LowerDistIR``.
    inputs : sequence or mapping of whole arrays
        In the order of the original ``main``'s parameters, or by their names. Shapes and types
        must be exactly those of the parameters.
    engine : str or Engine
        ``"threads"``, ``"virtual"``, or an engine object with options of its own.

    Returns
    -------
    outputs : list of ndarray
        Whole arrays, in the order of the original function's flattened results.

    Raises
    ------
    RuntimeError_
        DIST0601 unknown engine, DIST0602 inputs that do not fit, DIST0603 not at level 5,
        DIST0604 replicas that differ, DIST0605 a construct the engine cannot run, DIST0610 to
        DIST0613 failures of ranks.
    """
    return _engine(engine).run(dist, inputs)


_engine = engine

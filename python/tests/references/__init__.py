# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Oracles of the native code: what it computes, in plain Python and NumPy (slow, simple).

:func:`using` puts those of the simulator and of the solver in the place of the native functions,
and :func:`use_everywhere` all of them, for a whole process. Oracles of nodes and tables have the
signature of the native function, the others that of the Python function that calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.references import (
    contention,
    cost_tables,
    maps,
    node_reading,
    node_writing,
    schedule,
    serving_events,
    thread_fabric,
)
from tvm_distir.planning.serving.engine_loop import EngineLoop, ServedRequests
from tvm_distir.planning.serving.lengths import Ints
from tvm_distir.planning.serving.workload import Requests

KERNELS = ("native", "reference")
"""The native code, and its oracles."""


def _serve(loop: EngineLoop, requests: Requests) -> list[tuple[Ints, ServedRequests]]:
    return serving_events.ReferenceReplicas(requests, loop).run()


_EVENT_LOOP = "tvm_distir.performance.event_loop"
_SIMULATION = "tvm_distir.performance.simulation"
EVENT_LOOPS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "contention": (contention.contend, (f"{_EVENT_LOOP}.contention._contend",)),
    "schedule": (schedule.schedule_tasks, (f"{_EVENT_LOOP}.schedule._schedule",)),
    "simulation": (
        maps.ReferenceMaps,
        (
            f"{_EVENT_LOOP}.function_summaries.FunctionSummaries",
            f"{_SIMULATION}.task_graph.FunctionSummaries",
            f"{_SIMULATION}.pipeline.rank_classes.FunctionSummaries",
        ),
    ),
    "serve": (_serve, ("tvm_distir.planning.serving.engine_loop.EngineLoop.serve",)),
}
"""By native function, its oracle and the names of the function or class that calls it."""

NODES: dict[str, Callable[..., Any]] = {
    "read_functions": node_reading.read_functions,
    "spread": node_reading.spread,
    "survey": node_reading.survey,
    "joined_classes": node_writing.union_find,
    "make_ports": node_writing.make_ports,
    "make_variables": node_writing.make_variables,
    "prune": node_writing.prune,
    "rewriter": node_writing.rewriter,
}
"""The oracles of functions that read or write nodes."""

_SOLVER = "tvm_distir.core.solver.cost_tables.load_library"

_EVERYWHERE = ExitStack()


@contextmanager
def using(kernels: str) -> Iterator[None]:
    """Call the native functions of the simulator and of the solver, or their oracles."""
    with ExitStack() as stack:
        if kernels == "reference":
            for oracle, names in EVENT_LOOPS.values():
                for name in names:
                    stack.enter_context(patch(name, oracle))
            stack.enter_context(patch(_SOLVER, lambda: {"tables": cost_tables.tables}))
        yield


def use_everywhere() -> None:
    """Put all oracles in the place of native functions, for the rest of this process.

    Not beside native functions: each numbers equal values by itself, and caches hold these numbers.
    """
    names = patch("tvm_distir.support.native.loader._native_function", lambda name, _: NODES[name])
    for each in (names, using("reference"), thread_fabric.substituted()):
        _EVERYWHERE.enter_context(each)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the native functions that have a reference in Python.

A package without the native library calls the references in their place, and tests compare both.
Functions of ``passes/ccl``, which exchange data between threads, have none: the engine ``threads``
then uses collectives in NumPy.
"""

from __future__ import annotations

_NODES = "tvm_distir.core.rewriting.native"
_EVENT_LOOP = "tvm_distir.performance.event_loop"

REFERENCES: dict[str, str] = {
    "read_functions": f"{_NODES}.python_reading:read_functions",
    "spread": f"{_NODES}.python_reading:spread",
    "survey": f"{_NODES}.python_reading:survey",
    "joined_classes": f"{_NODES}.python_writing:union_find",
    "make_ports": f"{_NODES}.python_writing:make_ports",
    "make_variables": f"{_NODES}.python_writing:make_variables",
    "prune": f"{_NODES}.python_writing:prune",
    "rewriter": f"{_NODES}.python_writing:rewriter",
    "tables": "tvm_distir.core.solver.python_tables:tables",
    "contention": f"{_EVENT_LOOP}.python_contention:contend",
    "schedule": f"{_EVENT_LOOP}.python_schedule:schedule_tasks",
    "simulation": f"{_EVENT_LOOP}.python_maps:PythonMaps",
    "serve": "tvm_distir.planning.serving.python_events:PythonReplicas",
}
"""The module and the function that stand for each native function.

Functions of nodes and tables have the signature of the native function, the others that of the
Python function that calls it.
"""

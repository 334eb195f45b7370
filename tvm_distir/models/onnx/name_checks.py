# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check the names of an ONNX graph: unique, and defined before use."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from tvm_distir.support import ModelError

from .batch import node_location

_REMEDY = "Export the model again; run onnx.checker for further faults."


def check_names(graph: onnx.GraphProto, location: str, outer: frozenset[str] = frozenset()) -> None:
    """Reject names defined twice or never, including in subgraphs (DIST0310).

    Parameters
    ----------
    graph : GraphProto
        Inputs and initializers may share a name: the initializer is the default.
    location : str
    outer : frozenset of str
        Names of the graphs around it, which it may read.
    """
    stored = [t.name for t in graph.initializer]
    stored += [t.values.name for t in graph.sparse_initializer]
    _once([value.name for value in graph.input], "two inputs", location)
    _once(stored, "two initializers", location)
    defined = {*stored, *(value.name for value in graph.input)}
    for node in graph.node:
        for name in filter(None, node.output):
            if name in defined:
                raise _fault(f'the name "{name}" is defined twice', node_location(node))
            defined.add(name)
    known = outer | defined
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise _fault(f'it reads "{name}", which is not defined', node_location(node))
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                check_names(inner, location, known)
    for value in graph.output:
        if value.name not in known:
            raise _fault(f'the output "{value.name}" is not defined', location)


def _once(names: Iterable[str], subject: str, location: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _fault(f'{subject} have the name "{name}"', location)
        seen.add(name)


def _fault(problem: str, location: str) -> ModelError:
    return ModelError("DIST0310", problem, location=location, remedy=_REMEDY)

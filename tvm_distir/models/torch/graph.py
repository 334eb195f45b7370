# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate a program's graph, node by node, into the body of ``main``."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx
from tvm.relax import BlockBuilder, Expr

from tvm_distir.models.common.quiet import IMPORT_ERRORS, reason
from tvm_distir.models.common.translation import Unsupported, shape_of
from tvm_distir.support import ModelError

from .aten_call import Absent, AtenCall, scope_of, translated
from .expert_order import Substitute, unsorted_rows
from .pinned_batch import PinnedBatch
from .table import CONVERTERS, NOTES, overload_name

_REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Operators that call a graph inside a region of torch."""


def _location(node: fx.Node) -> str:
    scope = scope_of(node)
    return f"{scope + '/' if scope else ''}{node.name} ({overload_name(node.target)})"


def check_operators(graphs: Iterable[fx.Graph], known: Collection[str] = ()) -> None:
    """Reject operators that are neither supported nor known (DIST0360), each with a node."""
    first: dict[str, str] = {}
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "call_function" and not _is_known(node, known):
                first.setdefault(overload_name(node.target), _location(node))
    if first:
        problem = f"the importer does not support {', '.join(first)}"
        remedy = "Write the model with other operators, or export it to ONNX."
        raise ModelError("DIST0360", problem, location=next(iter(first.values())), remedy=remedy)


def _is_known(node: fx.Node, others: Collection[str]) -> bool:
    name = overload_name(node.target)
    if name in CONVERTERS or name in NOTES or name in others or name == "sym_size.int":
        return True
    return node.target is operator.getitem or is_region(node) or _is_of_sizes(node)


def is_region(node: fx.Node) -> bool:
    """Return whether a node calls a subgraph without gradients or with autocast off."""
    name = str(getattr(node.target, "__name__", ""))
    if name not in _REGIONS:
        return False
    return name == _REGIONS[0] or node.args[2] is False


def _is_of_sizes(node: fx.Node) -> bool:
    return getattr(node.target, "__module__", "") in (
        "_operator",
        "torch",
        "math",
        "torch.sym_node",
    )


class Translation:
    """Translator of graphs into the current block of a builder.

    Parameters
    ----------
    builder : relax.BlockBuilder
    batch : PinnedBatch, optional
        The change of a batch that the program fixes.
    """

    def __init__(self, builder: BlockBuilder, batch: PinnedBatch | None = None) -> None:
        self._builder = builder
        self._batch = batch
        self._substitutes: dict[fx.Node, Substitute] = {}

    def run(self, owner: torch.nn.Module, graph: fx.Graph, env: dict[fx.Node, Any]) -> list[Any]:
        """Translate a graph; return the flat values of its output node.

        Parameters
        ----------
        owner : torch.nn.Module
            The module whose attributes the graph reads: graphs of regions.
        graph : torch.fx.Graph
        env : dict of Node to Any
            Values of the placeholders; gets those of all nodes.

        Raises
        ------
        ModelError
            DIST0361 a node that cannot be translated.
        """
        self._substitutes.update(unsorted_rows(graph))
        read = self._read_nodes(graph)
        for node in graph.nodes:
            if node.op == "output":
                return _flat(translated(node.args[0], env))
            if node.op == "get_attr":
                env[node] = self._attribute(operator.attrgetter(str(node.target))(owner))
            elif node.op == "call_function" and node in read:
                env[node] = self._node(node, env)
        return []

    def _attribute(self, value: Any) -> Any:
        """Return what an attribute of the owner stands for: the graph of a region."""
        return value

    def _read_nodes(self, graph: fx.Graph) -> set[fx.Node]:
        """Return the nodes on which the output depends, given the substitutes."""
        read: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            if node.op == "output" or node in read:
                substitute = self._substitutes.get(node)
                read.update(node.all_input_nodes if substitute is None else substitute.reads(node))
        return read

    def _node(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        try:
            return self._value(node, env)
        except Unsupported as error:
            problem = str(error)
            cause: Exception = error
        except IMPORT_ERRORS as error:
            problem, cause = f"its operands do not match: {reason(error)}", error
            if self._batch is not None:
                raise self._batch.fault(node, "its operands do not match") from error
        raise ModelError(
            "DIST0361", problem, location=_location(node), remedy="Rewrite this part of the model."
        ) from cause

    def _value(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        substitute = self._substitutes.get(node)
        if substitute is not None:
            return substitute.of(AtenCall(node, env, self._builder))
        name = overload_name(node.target)
        convert = CONVERTERS.get(name)
        if convert is not None and self._batch is None:
            return convert(AtenCall(node, env, self._builder))
        if convert is not None and self._batch is not None:
            operands = self._batch.operands(node, env, self._builder)
            value = convert(AtenCall(node, operands, self._builder, self._batch.sizes(node, env)))
            self._batch.check(node, env, value)
            return value
        if name in NOTES:
            return None
        args = [translated(arg, env) for arg in node.args]
        if name == "sym_size.int":
            return shape_of(args[0])[args[1]]
        if is_region(node):
            return self._region(node, args)
        for arg in args:
            if isinstance(arg, Absent):
                raise Unsupported(f"it reads {arg.what}")
        if node.target is operator.getitem:
            return args[0][args[1]]
        if any(isinstance(arg, Expr) for arg in args):
            raise Unsupported("a size that depends on data")
        target: Any = node.target
        return target(*args)

    def _region(self, node: fx.Node, args: list[Any]) -> Any:
        first = next(i for i, arg in enumerate(args) if hasattr(arg, "graph"))
        inner: Any = args[first]
        holders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        env: dict[fx.Node, Any] = dict(zip(holders, args[first + 1 :], strict=True))
        return self.run(inner, inner.graph, env)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]

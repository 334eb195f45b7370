# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make rules of a plan that shard values along the sequence."""

from __future__ import annotations

import glob
from collections.abc import Mapping

from tvm import ir, relax

from tvm_distir.core.ir import handle, tensor_type
from tvm_distir.core.ir.operators import ATTENTION_BACKWARD_OP, ATTENTION_OP
from tvm_distir.core.plan import MeshSpec, PlanRule
from tvm_distir.core.propagation import TiedDims

from .model_info import entries, one_axis
from .sequence_dims import Product, products

Left = Mapping[tuple[str, str], bool]
EVERYTHING: Left = {}


class PlacementRules:
    """Rules that shard values of a module along a mesh axis, each target once.

    Parameters
    ----------
    mod : IRModule
    mesh : MeshSpec
    axis : str
    left : mapping, optional
        Whether each variable may be sharded, per function; variables that it does not name may.
    """

    def __init__(
        self, mod: ir.IRModule, mesh: MeshSpec, axis: str, left: Left = EVERYTHING
    ) -> None:
        self._left = left
        self._names = {str(gv.name_hint) for gv in mod.functions}
        self._public = {name: rule_name for name, _, rule_name in entries(mod)}
        self._mesh, self._number = mesh, mesh.axis_number(axis)
        self._rules: dict[tuple[object, ...], PlanRule] = {}

    @property
    def rules(self) -> tuple[PlanRule, ...]:
        """Return the rules so far."""
        return tuple(self._rules.values())

    def put(self, tied: TiedDims, node: int, dim: int, stationary: bool = False) -> None:
        """Shard the result of a node along a dim; for each target the last call counts.

        Nothing where it does not follow from the inputs, or may not be cut, or its variable does
        not stand in the module or shares its name.
        """
        g = tied.graph
        if g.name not in self._names or node not in tied.names:
            return
        name = _name_of_result(tied, node)
        if not (tied.follows[g.nodes[node].results[0]] and self._free(g.name, name)):
            return
        title = glob.escape(name)
        cut = one_axis(self._mesh, self._number, dim)
        function = self._public.get(g.name, g.name)
        known = self._rules.get((function, title))
        stationary |= known is not None and known.stationary and known.placement == cut
        rule = PlanRule("value", title, cut, self._mesh.name, stationary, function)
        self._rules[function, title] = rule

    def rows(self, tied: TiedDims, value: int) -> None:
        """Cut a value along its sequence, where it has such a dim and an op gives it."""
        dims, node = tied.dims(value), -1 if value < 0 else tied.graph.producer[value][0]
        if len(dims) == 1 and node >= 0 and tied.graph.nodes[node].rule is not None:
            self.put(tied, node, dims[0])

    def _free(self, function: str, variable: str) -> bool:
        return self._left.get((function, variable), True)

    def arguments(self, tied: TiedDims) -> None:
        """Cut the arguments of calls that are floats along their sequence."""
        g = tied.graph
        requests: dict[tuple[str, int], set[int]] = {}
        for binding in g.bindings:
            call = binding.value
            if not (isinstance(call, ir.Call) and isinstance(call.op, ir.GlobalVar)):
                continue
            for i, arg in enumerate(call.args):
                tensor = tensor_type(arg.ty)
                cached = g.env.get(handle(arg), ())
                if tensor is None or len(cached) != 1 or "float" not in str(tensor.dtype):
                    continue
                dims = tied.dims(cached[0])
                key = (str(call.op.name_hint), i)
                named = isinstance(arg, ir.Var) and self._free(g.name, str(arg.name))
                fits = len(dims) == 1 and tied.follows[cached[0]] and named
                requests.setdefault(key, set()).add(dims[0] if fits else -1)
        for (callee, i), asked_dims in requests.items():
            if (
                g.name in self._names
                and callee in self._names
                and len(asked_dims) == 1
                and -1 not in asked_dims
            ):
                function = self._public.get(g.name, g.name)
                cut = one_axis(self._mesh, self._number, next(iter(asked_dims)))
                rule = PlanRule("call", callee, cut, self._mesh.name, function=function, arg=i)
                self._rules[function, callee, i] = rule


def _name_of_result(tied: TiedDims, node: int) -> str:
    """Return the name of the variable of a node's first result, which may be a field."""
    g = tied.graph
    if len(g.nodes[node].results) > 1:
        for binding in g.bindings:
            first = g.env.get(handle(binding.var)) == (g.nodes[node].results[0],)
            if first and isinstance(binding.value, relax.TupleGetItem):
                return str(binding.var.name)
    return tied.names[node]


def shard_rows(tied: TiedDims, values: PlacementRules, count: int) -> None:
    """Shard operands and results of products along the sequence, in attention the queries.

    Parameters
    ----------
    tied : TiedDims
    values : PlaceValues
    count : int
        The number of parts.
    """
    g = tied.graph
    for product in products(tied):
        node = g.nodes[product.node]
        if not tied.dims(node.results[0]):
            shard_product(values, product, count)
            continue
        for value in (*node.operands, *node.results):
            values.rows(tied, value)
    for k, node in enumerate(g.nodes):
        if node.rule is not None and node.rule.op in (ATTENTION_OP, ATTENTION_BACKWARD_OP):
            for dim in tied.dims(node.results[0]):
                values.put(tied, k, dim, stationary=True)
        if node.rule is None or len(node.results) != 1 or not node.operands:
            continue
        read = node.operands[0]
        for (
            f
        ) in node.rule.factors:  # a softmax over the keys, or where it is written out its maximum
            keys, value = (f.outs[0], node.results[0]) if f.kind == "stat" else (f.ins[0], read)
            dims = tied.dims(value)
            if f.kind in ("stat", "max") and len(dims) == 2 and keys in dims:
                queries = dims[0] if keys == dims[1] else dims[1]
                at = k if f.kind == "stat" else g.producer[value][0] if value >= 0 else -1
                if at >= 0:
                    values.put(tied, at, queries, stationary=True)


def shard_product(values: PlacementRules, product: Product, count: int) -> None:
    """Cut a list of tokens, in which the sequence is no dim any more, along another dim."""
    dim = product.kept_dim(count)
    if dim is not None:
        values.put(product.tied, product.node, dim)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the computations over gathered keys of attention in a function (level 5).

A *walk* is the dim of a value that runs over all keys. It begins at a gather, goes through ops that
work on each key separately by their rules, and ends in a sum over the keys, in a softmax, or
in a ``reduce_scatter``, which leaves each device its keys' part. Attention, its
gradient, and their recomputations are such regions. Ops further along the walk may need the result
of a sum: a region has phases, each of which can be computed key by key after the preceding phases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir.operators import call_axes, dist_op_name
from tvm_distir.core.ops import rule_of
from tvm_distir.core.rewriting import op_name, variables
from tvm_distir.support import LoweringError, PropagationError

from .function_facts import Row
from .ring_nodes import Region, RegionNode, handed_on, path_between, weights_of
from .ring_softmax import SOFTMAX, Softmax, written_softmaxes
from .ring_sources import ATTENTION, PRODUCTS, REMEDY, gathered_values, travelling


class RegionFinder:
    """Finder of the regions of a binding block.

    Parameters
    ----------
    name : str
        The name of the function.
    rows : sequence of Row
        The rows of the block.
    values, readers : mapping
        The values and readers of the function, see :class:`.scan.Scan`.
    axes : mapping of str to collection of int
        Mesh axes along which nothing may be gathered for attention, by the mesh's text.
    """

    def __init__(
        self,
        name: str,
        rows: Sequence[Row],
        values: Mapping[Any, Any],
        readers: Mapping[Any, Sequence[Any]],
        axes: Mapping[str, Collection[int]],
    ) -> None:
        self._name, self._rows, self._values, self._readers = name, rows, values, readers
        self._axes = axes
        self._sources = gathered_values(rows, values, readers, axes)
        self._softmaxes, self._stats = written_softmaxes(rows, values, readers)
        self._walk: dict[Any, int] = {}
        self._nodes: dict[Any, RegionNode] = {}
        self._ready: dict[Any, int] = {}
        self._parent: dict[Any, Any] = {}

    def run(self) -> list[Region]:
        """Return the regions that are attention.

        Raises
        ------
        LoweringError
            DIST0511 if attention reads gathered rows otherwise.
        """
        for _, var, value, kind in self._rows:
            self._visit(var, value, kind)
        groups: dict[Any, list[Any]] = {}
        for var in (*self._sources, *self._nodes):
            groups.setdefault(self._root(var), []).append(var)
        regions = [self._region(members) for members in groups.values()]
        return [region for region in regions if region is not None]

    # walking

    def _visit(self, var: Any, value: Any, kind: str | None) -> None:
        phase = max((self._ready.get(v, 1) for v in variables(value)), default=1)
        self._ready[var] = phase
        source = self._sources.get(var)
        if source is not None:
            self._walk[var], self._parent[var] = source.dim, var
            return
        node = self._node(var, value, kind, phase)
        if node is None:
            return
        self._nodes[var] = node
        self._parent[var] = var
        for arg in variables(value):
            if arg in self._walk:
                self._parent[self._root(arg)] = self._root(var)
        if node.dim is not None:
            self._walk[var] = node.dim
        later = node.kind in ("sum", "scatter", "softmax", "stat")
        self._ready[var] = node.phase + 1 if later else node.phase

    def _root(self, var: Any) -> Any:
        while self._parent[var] is not var:
            self._parent[var] = self._parent[self._parent[var]]
            var = self._parent[var]
        return var

    def _node(self, var: Any, value: Any, kind: str | None, phase: int) -> RegionNode | None:
        if isinstance(value, ir.Var):
            dim = self._walk.get(value)
            return None if dim is None else RegionNode(var, value, "same", (dim,), dim, phase)
        if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
            return None
        args = value.args[:]
        dims = [self._walk.get(arg) if isinstance(arg, ir.Var) else None for arg in args]
        if all(dim is None for dim in dims):
            return None
        walks, first = tuple(dims), next(dim for dim in dims if dim is not None)
        if var in self._stats:
            dim = first if op_name(value) in ("subtract", "exp") else None
            return RegionNode(var, value, "stat", walks, dim, phase)
        if var in self._softmaxes:
            return RegionNode(var, value, "softmax", walks, first, phase)
        if kind is not None:
            scatters = kind == "reduce_scatter" and self._scatters(value, first)
            return RegionNode(var, value, "scatter", walks, None, phase) if scatters else None
        if op_name(value) == "nn.pad":
            return RegionNode(var, value, "pad", walks, first, phase) if self._pads(var) else None
        if op_name(value) == SOFTMAX:
            if first != len(var.ty.shape) - 1 or int(value.attrs.axis) % len(var.ty.shape) != first:
                return None
            self._softmaxes[var] = Softmax(args[0], var)
            return RegionNode(var, value, "softmax", walks, first, phase)
        return self._by_rule(var, value, dims, phase)

    def _by_rule(
        self, var: Any, call: ir.Call, dims: Sequence[int | None], phase: int
    ) -> RegionNode | None:
        args = call.args[:]
        if any(isinstance(arg, relax.Tuple) for arg in args):
            return None
        at = [i for i, arg in enumerate(args) if isinstance(arg, ir.Var | ir.GenericConst)]
        try:
            rule = rule_of(call, None, var.ty)
        except PropagationError:
            return None
        for factor in rule.factors:
            if len(factor.ins) != len(at) or len(factor.outs) != 1:
                continue
            walks: list[int | None] = [None] * len(args)
            for i, dim in zip(at, factor.ins, strict=True):
                walks[i] = dim
            if any(d is not None and walks[i] != d for i, d in enumerate(dims)):
                continue
            if not any(d is not None for d in dims):
                continue
            (out,) = factor.outs
            if factor.kind == "map" and out is not None:
                return RegionNode(var, call, "map", tuple(walks), out, phase)
            if factor.kind == "sum" and out is None:
                return self._summed(var, call, tuple(walks), phase)
        return None

    def _summed(self, var: Any, call: ir.Call, walks: Any, phase: int) -> RegionNode:
        """Record a sum over keys, or a sum of unnormalized weights where all else matches."""
        weights = weights_of(self._nodes, call.args[0])
        last = len(call.args[0].ty.shape) - 1
        name = op_name(call)
        rescaled = walks[0] == last and (
            name == "matmul" or (name == "sum" and bool(call.attrs.keepdims))
        )
        if weights is not None and rescaled:
            begun = self._nodes[weights].phase
            path = path_between(self._nodes, call.args[0], weights)
            others = {v for value in (call, *(n.value for n in path)) for v in variables(value)}
            others -= {weights, *(n.var for n in path)}
            if all(self._ready.get(v, 1) <= begun for v in others):
                return RegionNode(var, call, "sum", walks, None, begun, weights)
        return RegionNode(var, call, "sum", walks, None, phase)

    def _scatters(self, call: ir.Call, dim: int) -> bool:
        axes = call_axes(call)
        cached = self._axes.get(str(call.attrs["device_mesh"]), ())
        good = len(axes) == 1 and axes[0] in cached and str(call.attrs["op"]) == "sum"
        return good and int(call.attrs["dim"]) == dim

    def _pads(self, var: Any) -> bool:
        """Return whether a padding is read only by scatters."""
        readers = self._readers.get(var, ())
        kinds = [dist_op_name(self._values[r]) if r is not None else None for r in readers]
        return bool(kinds) and all(kind == "reduce_scatter" for kind in kinds)

    # judging

    def _region(self, members: Sequence[Any]) -> Region | None:
        """Return the members as a region, or None if they are not attention."""
        nodes = {var: self._nodes[var] for var in members if var in self._nodes}
        sources = {var: self._sources[var] for var in members if var in self._sources}
        products = [n for n in nodes.values() if n.dim is not None and op_name(n.value) in PRODUCTS]
        first = next(iter(sources.values()))
        softmaxes = {v: s for v, s in self._softmaxes.items() if v in nodes}
        attends = bool(softmaxes) or any(map(_reads_keys, products))
        whole_softmaxes: set[Any] = set()
        misread: list[tuple[Any, Any]] = []
        for var in members:
            for reader in self._readers.get(var, ()):
                if reader in nodes or (reader in self._sources and reader in sources):
                    continue
                if self._misreads(var, reader, bool(products), whole_softmaxes, nodes):
                    misread.append((var if reader is None else reader, var))
        kinds = {(str(s.mesh), s.axis, s.rows, s.whole) for s in sources.values()}
        if products and len(kinds) > 1:
            misread.append((products[0].var, next(iter(sources))))
        for reader, var in misread:
            if attends or op_name(self._values.get(reader)) in ATTENTION:
                raise self._refusal(reader, var)
        if misread or not products:
            return None  # no attention: what is gathered, since that costs least, stays gathered
        region = Region(first.mesh, first.axis, first.count, first.rows, first.whole)
        region.sources, region.nodes = sources, nodes
        region.softmaxes, region.whole_softmaxes = softmaxes, whole_softmaxes
        region.roots = travelling(sources, self._values)
        return region

    def _misreads(
        self,
        var: Any,
        reader: Any,
        products: bool,
        wholes: set[Any],
        nodes: Mapping[Any, RegionNode],
    ) -> bool:
        """Whether a reader outside of the region reads more than finished sums and a softmax."""
        value = self._values.get(reader) if reader is not None else None
        if var in nodes and nodes[var].dim is None:
            return False
        weights = handed_on(self._nodes, var)
        if weights is not None and op_name(value) not in PRODUCTS:
            wholes.add(weights)
            return False
        return products or op_name(value) in ATTENTION

    def _refusal(self, var: Any, arg: Any) -> LoweringError:
        return LoweringError(
            "DIST0511",
            f"it reads {arg.name}, which is gathered along a ring axis or computed from such a "
            "value, and cannot be computed in blocks: only ops that act on each key separately, "
            "softmax over the last dim, and sums can",
            place=f"{self._name}/{var.name}",
            remedy=REMEDY,
        )


def _reads_keys(product: RegionNode) -> bool:
    """Whether the rows of a product's second operand are keys; weights have no batch dims."""
    first, second = product.value.args[:2]
    return product.walks[1] is not None and len(first.ty.shape) == len(second.ty.shape)

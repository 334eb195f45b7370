# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A graph of tensor dims that are to be sharded alike, and the edges that each op adds to it."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tvm_ffi
from tvm import relax, sym, tirx
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement, PlacementSpec

from .kernel_axes import axis_groups

# Kinds of a step between two nodes; a path is the set of its kinds.
FORWARD, SIDEWAYS, BACKWARD = 1, 2, 4
REVERSE = {FORWARD: BACKWARD, SIDEWAYS: SIDEWAYS, BACKWARD: FORWARD}
NO_STEP = 0

UNARY = """abs acos acosh asin asinh atan atanh builtin.stop_lift_params ceil clip cos cosh
dist.annotate_sharding erf exp floor isfinite isinf isnan log negative nn.gelu nn.relu round rsqrt
sigmoid sign sin sinh sqrt square tan tanh""".split()
BINARY = """add divide equal floor_divide greater greater_equal less less_equal maximum minimum
multiply not_equal power subtract""".split()
REDUCTIONS = "max mean min prod std sum variance".split()


def _rank(path: int) -> int:
    """Return the rank of a path by the set of its steps; the lowest wins."""
    return {NO_STEP: 0, FORWARD: 1, BACKWARD: 3}.get(path, 2)


class Leaf(NamedTuple):
    """A tensor: a value, or a field of a tuple.

    Attributes
    ----------
    mesh : int
        The node of its device mesh; the nodes of its dims follow.
    type : TensorType
        Its type before propagation.
    """

    mesh: int
    type: Any

    @property
    def shape(self) -> list[Any]:
        """Return the extents of its dims."""
        if not isinstance(self.type.shape, relax.ShapeExpr):
            raise ValueError(f"sharding propagation needs a tensor of known shape, not {self.type}")
        return list(self.type.shape.values)

    def dim(self, index: int) -> int:
        """Return the node of a dim; a negative index counts from the end."""
        return self.mesh + 1 + index % self.type.ndim


Edge = tuple[int, int, int]  # two nodes, and the kind of the step from the first to the second


class AxisGraph:
    """Nodes that are to be sharded alike, and the annotations that spread along its edges."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int]]] = []
        self.sources: dict[int, int] = {}
        self.specs: list[tuple[int, int]] = []
        self.blocked: set[int] = set()
        self.choice: dict[int, int] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._meshes: list[DeviceMesh] = []

    def leaf(self, tensor: Any) -> Leaf:
        """Add the nodes of a tensor."""
        first = len(self.edges)
        self.edges.extend([] for _ in range(tensor.ndim + 1))
        return Leaf(first, tensor)

    def join(self, edges: Iterable[Edge]) -> None:
        """Add edges in both directions."""
        for first, second, kind in edges:
            self.edges[first].append((second, kind))
            self.edges[second].append((first, REVERSE[kind]))

    def annotate(self, node: int, mesh: DeviceMesh, axis: int) -> None:
        """Make a node a source; ``axis`` is -1 for the node of a mesh."""
        self.sources[node] = self._number(mesh, axis)

    def _number(self, mesh: DeviceMesh, axis: int) -> int:
        """Return the number of a sharding, in order of its first annotation."""
        same = (i for i, m in enumerate(self._meshes) if tvm_ffi.structural_equal(m, mesh))
        index = next(same, len(self._meshes))
        if index == len(self._meshes):
            self._meshes.append(mesh)
        number = self._numbers.setdefault((index, axis), len(self.specs))
        if number == len(self.specs):
            self.specs.append((index, axis))
        return number

    def propagate(self) -> None:
        """Choose a sharding for each node that a source reaches."""
        best: dict[int, tuple[int, int]] = {}
        queue = collections.deque((node, spec, NO_STEP) for node, spec in self.sources.items())
        seen = set(queue)
        while queue:
            node, spec, path = queue.popleft()
            if node in self.blocked or self.sources.get(node, spec) != spec:
                continue
            best[node] = min(best.get(node, (len(REVERSE) + 1, 0)), (_rank(path), spec))
            for target, kind in self.edges[node]:
                reached = (target, spec, path | kind)
                if reached not in seen:
                    seen.add(reached)
                    queue.append(reached)
        self.choice = {node: spec for node, (_, spec) in best.items()}

    def mesh_of(self, leaf: Leaf) -> DeviceMesh | None:
        """Return the device mesh of a tensor, None if no annotation reaches it."""
        number = self.choice.get(leaf.mesh)
        return None if number is None else self._meshes[self.specs[number][0]]

    def shards(self, leaf: Leaf) -> dict[int, int]:
        """Return by mesh axis the dim of a tensor that it shards; the first dim wins."""
        mesh_number = self.choice.get(leaf.mesh)
        matches: dict[int, int] = {}
        for dim in range(leaf.type.ndim):
            number = self.choice.get(leaf.dim(dim))
            if number is None or mesh_number is None:
                continue
            mesh, axis = self.specs[number]
            if mesh == self.specs[mesh_number][0]:
                matches.setdefault(axis, dim)
        return matches

    def block_small_dims(self, leaves: Iterable[Leaf]) -> None:
        """Keep each dim that has fewer entries than its mesh axis has workers replicated."""
        for leaf in leaves:
            mesh = self.mesh_of(leaf)
            for axis, dim in self.shards(leaf).items():
                extent = leaf.shape[dim]
                if isinstance(extent, tirx.IntImm) and int(extent) < int(mesh.shape[axis]):
                    self.blocked.add(leaf.dim(dim))

    def type_of(self, leaf: Leaf) -> DTensorType:
        """Return the type of a tensor after propagation."""
        mesh = self.mesh_of(leaf)
        if mesh is None:
            raise ValueError(f"no annotation assigns a device mesh to a tensor of {leaf.type}")
        specs = [PlacementSpec.replica()] * len(mesh.shape)
        for axis, dim in self.shards(leaf).items():
            specs[axis] = PlacementSpec.sharding(dim)
        return DTensorType(leaf.type, mesh, Placement(specs))


def _equal(first: Any, second: Any) -> bool:
    """Return whether two extents are provably equal."""
    return sym.Analyzer().can_prove_equal(first, second)


def _broadcast(operands: Sequence[tuple[Leaf, int]], result: Leaf, rank: int) -> Iterator[Edge]:
    """Join the leading dims of operands, aligned at the last of them, with those of a result.

    Parameters
    ----------
    operands : sequence of (Leaf, int)
        Each operand, and how many of its leading dims broadcast.
    rank : int
        The number of leading dims of the result that they broadcast to.
    """
    for operand, count in operands:
        for dim in range(count):
            target = rank - count + dim
            if _equal(operand.shape[dim], result.shape[target]):
                yield operand.dim(dim), result.dim(target), FORWARD


def _matmul(x: Leaf, w: Leaf, result: Leaf) -> Iterator[Edge]:
    """Join the dims of a matrix product: batch dims, rows, columns, and the contracted dim."""
    row, column = x.type.ndim > 1, w.type.ndim > 1
    batch = [(x, max(x.type.ndim - 2, 0)), (w, max(w.type.ndim - 2, 0))]
    yield from _broadcast(batch, result, max(count for _, count in batch))
    yield x.dim(-1), w.dim(-2 if column else -1), SIDEWAYS
    if row:
        yield x.dim(-2), result.dim(-2 if column else -1), FORWARD
    if column:
        yield w.dim(-1), result.dim(-1), FORWARD


def _reshape(x: Leaf, result: Leaf) -> Iterator[Edge]:
    """Join the first dims of groups with equal sizes, counted from the last dim.

    Type inference does not join the first dim of the tensors, and neither does this function.
    """
    analyzer = sym.Analyzer()
    old, new = x.shape, result.shape
    i, j = len(old), len(new)
    old_size: Any = tirx.IntImm("int64", 1)
    new_size: Any = tirx.IntImm("int64", 1)
    while i > 0 and j > 0:
        if analyzer.can_prove(new_size > old_size):
            i -= 1
            old_size = old_size * old[i]
        elif analyzer.can_prove(new_size < old_size):
            j -= 1
            new_size = new_size * new[j]
        else:
            if i < len(old):
                yield x.dim(i), result.dim(j), FORWARD
            i, j = i - 1, j - 1
            old_size, new_size = old_size * old[i], new_size * new[j]


def _removed_dims(call: relax.Call, ndim: int) -> tuple[set[int], bool]:
    """Return the dims along which an op reduces, and whether it keeps them."""
    if call.op.name == "relax.nn.softmax":
        return {int(call.attrs.axis) % ndim}, True
    axes = call.attrs.axis
    dims = range(ndim) if axes is None else (int(a) % ndim for a in axes)
    return set(dims), bool(call.attrs.keepdims)


def _reduction(call: relax.Call, x: Leaf, result: Leaf) -> Iterator[Edge]:
    """Join the dims along which an op does not reduce."""
    removed, stays = _removed_dims(call, x.type.ndim)
    remaining = [d for d in range(x.type.ndim) if d not in removed]
    for position, dim in enumerate(remaining):
        yield x.dim(dim), result.dim(dim if stays else position), FORWARD


def _permutation(call: relax.Call, x: Leaf, result: Leaf) -> Iterator[Edge]:
    """Join each dim of a transposed tensor with the one that it comes from."""
    axes = call.attrs.axes
    order = range(x.type.ndim)[::-1] if axes is None else [int(a) for a in axes]
    for position, dim in enumerate(order):
        yield x.dim(dim), result.dim(position), FORWARD


def op_edges(call: relax.Call, operands: list[Leaf], result: Leaf) -> Iterator[Edge]:
    """Yield the edges between the dims of an op's operands and of its result."""
    name = call.op.name.removeprefix("relax.")
    if name in UNARY or name in BINARY:
        pairs = [(x, x.type.ndim) for x in operands]
        yield from _broadcast(pairs, result, result.type.ndim)
    elif name in REDUCTIONS or name == "nn.softmax":
        yield from _reduction(call, operands[0], result)
    elif name == "matmul":
        yield from _matmul(*operands, result)
    elif name == "permute_dims":
        yield from _permutation(call, operands[0], result)
    elif name == "reshape":
        yield from _reshape(operands[0], result)


def kernel_edges(
    function: tirx.PrimFunc, operands: list[Leaf | None], results: list[Leaf]
) -> Iterator[Edge]:
    """Yield the edges between the dims of a kernel's buffers that one loop runs over."""
    leaves = [*operands, *results]
    for group in axis_groups(function):
        known = [(leaves[p], dim, p >= len(operands)) for p, dim in group if p < len(leaves)]
        sides = [(leaf.dim(dim), is_result) for leaf, dim, is_result in known if leaf is not None]
        produced = [node for node, is_result in sides if is_result]
        read = [node for node, is_result in sides if not is_result]
        for node in read:
            yield from ((node, target, FORWARD) for target in produced)
        if not produced:
            yield from ((node, read[0], SIDEWAYS) for node in read[1:])

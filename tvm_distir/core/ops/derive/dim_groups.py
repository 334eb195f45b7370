# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Groups the iteration variables and buffer dims that must be sharded together or not at all."""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax, tirx

from tvm_distir.core.ops.dims import expr, product, same
from tvm_distir.support import lists_by_key

from .compute_blocks import Block, buffer_shape, loads
from .shift import shift_of, uses

#: ("iter", block, variable) or ("dim", buffer, dim)
Node = tuple[str, int, int]


class NodeClasses:
    """Union-find over nodes, with the step of each variable and the reasons for pinned classes."""

    def __init__(self) -> None:
        self._parent: dict[Node, Node] = {}
        self.steps: dict[Node, int] = {}
        self.pins: dict[Node, str] = {}

    def find(self, node: Node) -> Node:
        """Return the root of a node's class."""
        self._parent.setdefault(node, node)
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def tie(self, a: Node, b: Node) -> None:
        """Merge the classes of two nodes (the smaller root stays)."""
        low, high = sorted((self.find(a), self.find(b)))
        self._parent[high] = low

    def pin(self, node: Node, why: str) -> None:
        """Forbid sharding a node's class, for a reason."""
        self.find(node)
        self.pins.setdefault(node, why)

    def step(self, node: Node, step: int) -> None:
        """Require that blocks of a variable are multiples of a step."""
        self.find(node)
        self.steps[node] = math.lcm(self.steps.get(node, 1), step)

    def members(self) -> dict[Node, list[Node]]:
        """Return the members of each class by root, in order."""
        return lists_by_key((self.find(node), node) for node in sorted(self._parent))


class Buffers:
    """Numbering of buffers by identity: operands, results, then intermediate buffers."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._numbers_of: dict[ir.Expr, int] = {}
        self.shapes: list[list[Any]] = []
        for param in func.params:
            if hasattr(param.ty, "shape"):
                self.number(param)
        self.params = len(self.shapes)

    def number(self, buffer: ir.Expr) -> int:
        """Return the number of a buffer."""
        number = self._numbers_of.setdefault(buffer, len(self.shapes))
        if number == len(self.shapes):
            self.shapes.append(buffer_shape(buffer))
        return number


def _contained(block: Block, e: ir.Expr, var: relax.Var, step: int, change: int) -> bool:
    """Return whether a variable's first block keeps an index inside the first block of its dim."""
    analyzer = type(block.analyzer)()
    for other, extent in block.extents:
        span = step if other.same_as(var) else extent
        analyzer.bind(other, ir.Range(expr(0), expr(span)))
    bound = analyzer.const_int_bound(e)
    return int(bound.min_value) >= 0 and int(bound.max_value) < change


def _visit_index(
    classes: NodeClasses, number: int, block: Block, dim: Node, extent: int | ir.Expr, e: ir.Expr
) -> None:
    if isinstance(extent, int) and extent == 1:
        return
    e = block.analyzer.simplify(e)
    gathered = any(True for _ in loads(e))
    tied = False
    moving: list[Node] = []
    for k, (var, extent_k) in enumerate(block.extents):
        if not uses(e, var):
            continue
        node: Node = ("iter", number, k)
        shift = shift_of(e, var)
        if shift is None:
            classes.pin(node, "its indexing is not supported")
            continue
        step, change = shift
        symbolic = not isinstance(extent_k, int)
        if symbolic and step != 1:
            classes.pin(node, "its symbolic extent is split")
        elif change == 0:
            classes.step(node, step)
        elif (
            not tied
            and not gathered
            and change > 0
            and same(product((change, extent_k)), product((extent, step)))
            and _contained(block, e, var, step, change)
        ):
            tied = True
            classes.step(node, step)
            classes.tie(node, dim)
        else:
            moving.append(node)
    for node in moving:
        classes.pin(node, "a block of it reaches into other blocks")
    if not tied:
        classes.pin(dim, "it is indexed by values" if gathered else "blocks of it are not aligned")


def _visit_value(classes: NodeClasses, number: int, block: Block, e: ir.Expr) -> None:
    """Pin variables whose position enters a value or a condition: they cannot be sharded."""
    for k, (var, _) in enumerate(block.extents):
        if uses(e, var):
            shift = shift_of(e, var)
            if shift is None or shift[1] != 0:
                classes.pin(("iter", number, k), "its position enters the values")
            else:
                classes.step(("iter", number, k), shift[0])


def _visit(classes: NodeClasses, buffers: Buffers, number: int, block: Block) -> None:
    """Tie and pin the dims that block ``number`` iterates over, reads and writes."""
    for k, (_, _) in enumerate(block.extents):
        classes.find(("iter", number, k))
        if block.reduced[k] and not block.combiner:
            classes.pin(("iter", number, k), "its reduction is not supported")
    for store in block.stores:
        exprs = store.read()
        accesses = [(store.buffer, store.indices)]
        accesses += [
            (x.source, list(x.indices)) for e in (*exprs, *store.indices) for x in loads(e)
        ]
        for buffer, indices in accesses:
            position = buffers.number(buffer)
            for d, e in enumerate(indices):
                _visit_index(
                    classes, number, block, ("dim", position, d), buffers.shapes[position][d], e
                )
        for e in exprs:
            _visit_value(classes, number, block, e)


def classes_of(buffers: Buffers, blocks: list[Block]) -> NodeClasses:
    """Return the classes of the dims of all buffers and of the loop variables of all blocks."""
    classes = NodeClasses()
    for number, block in enumerate(blocks):
        _visit(classes, buffers, number, block)
    _tie_unread_operands(classes, buffers, blocks)
    return classes


def _tie_unread_operands(classes: NodeClasses, buffers: Buffers, blocks: list[Block]) -> None:
    """Let operands of which only the shape is read follow the last result.

    Their values do not matter, so that any placement is right. Dims at the same position with the
    same extent are sharded together, such as the batch of a cache and of the queries.
    """
    stores = [store for block in blocks for store in block.stores]
    read = {buffers.number(store.buffer) for store in stores}
    for store in stores:
        for e in (*store.read(), *store.indices):
            read |= {buffers.number(x.source) for x in loads(e)}
    last = buffers.params - 1
    for number in range(last):
        pairs = zip(buffers.shapes[number], buffers.shapes[last])
        for d, (extent, other) in enumerate(pairs if number not in read else ()):
            if same(extent, other):
                classes.tie(("dim", number, d), ("dim", last, d))


def class_size(
    classes: NodeClasses, blocks: list[Block], nodes: list[Node]
) -> tuple[Any, bool] | None:
    """Return (most blocks, elementwise) of a class; None when extents cannot be reconciled."""
    size: Any = None
    aligned = True
    for kind, number, k in nodes:
        if kind != "iter":
            continue
        extent = blocks[number].extents[k][1]
        step = classes.steps.get((kind, number, k), 1)
        aligned = aligned and step == 1
        if isinstance(extent, int):
            if extent % step:
                return None
            extent //= step
        if size is None:
            size = extent
        elif isinstance(size, int) and isinstance(extent, int):
            aligned = aligned and size == extent
            size = math.gcd(size, extent)
        elif not same(size, extent):
            return None
    return None if size is None else (size, aligned)

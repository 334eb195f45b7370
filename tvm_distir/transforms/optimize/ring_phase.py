# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write a phase of a region, key block by key block around the ring (level 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvm_distir.core.ir.operators import ops
from tvm_distir.core.rewriting import rebuild, scalar, variables

from .ring_block import Emit, RingBlock, Stats, int64
from .ring_nodes import Region, RegionNode, path_to


class RingPhase:
    """Writer of the ``n`` blocks of a phase.

    Each device begins with its keys and passes its block to the next device ``n - 1`` times. Sums
    over the keys grow on the device; sums per key, as the gradient of keys, follow the block: such
    a sum begins on the second device that a block reaches, and is added to the owner's part after
    ``n - 1`` steps as well.

    Parameters
    ----------
    region : Region
    number : int
        The number of the phase.
    emit : callable
        Binds a value to a new variable of a name.
    stats : dict
        The statistics of the softmaxes of earlier phases; those of this phase are added.
    """

    def __init__(self, region: Region, number: int, emit: Emit, stats: Stats) -> None:
        self._region, self._number, self._emit, self._stats = region, number, emit, stats
        nodes = [n for n in region.nodes.values() if n.phase == number]
        self._sums = [n for n in nodes if n.kind == "sum"]
        self._scatters = [n for n in nodes if n.kind == "scatter"]
        self._softmaxes = [n for n in nodes if n.kind == "softmax"]
        self._needed = self._closure()
        self._roots = {v: region.roots[v] for v in self._used}
        self._sum: dict[Any, Any] = {}
        self._block_of: dict[Any, Any] = {}
        self._moving: dict[Any, Any] = {}
        self._running: Stats = {}
        self._scores: dict[Any, list[Any]] = {n.var: [] for n in self._softmaxes}
        self._me: Any = None

    @property
    def has_softmax(self) -> bool:
        """Return whether the phase computes the maxima and sums of a softmax."""
        return bool(self._softmaxes)

    @property
    def outputs(self) -> list[Any]:
        """Return the variables that the phase computes."""
        variables_out = [node.var for node in (*self._sums, *self._scatters)]
        for node in self._softmaxes:
            softmax = self._region.softmaxes[node.var]
            variables_out += [v for v in (softmax.top, softmax.total) if v is not None]
            variables_out += [node.var] if node.var in self._region.whole_softmaxes else []
        return variables_out

    @property
    def reads(self) -> list[Any]:
        """Return the variables that the phase reads."""
        inner = set(self._region.nodes) | set(self._region.sources)
        reads: dict[Any, None] = dict.fromkeys(root for root, _ in self._roots.values())
        ends = [*self._sums, *self._scatters]
        between = [
            n for end in self._sums if end.online is not None for n in path_to(self._region, end)
        ]
        for node in (*self._needed.values(), *ends, *between):
            reads.update(dict.fromkeys(v for v in variables(node.value) if v not in inner))
        return list(reads)

    def _path(self, node: RegionNode) -> list[RegionNode]:
        """Return the nodes between unnormalized weights and a sum of them."""
        return [] if node.online is None else path_to(self._region, node)

    def _closure(self) -> dict[Any, RegionNode]:
        """Return the nodes per key block in order, without the softmaxes of this phase."""
        region = self._region
        waiting: list[Any] = [self._region.softmaxes[n.var].scores for n in self._softmaxes]
        for node in (*self._sums, *self._scatters):
            path = self._path(node)
            inner = {n.var for n in path} | {node.online}
            for member in (*path, node):
                waiting.extend(v for v in variables(member.value) if v not in inner)
        needed: set[Any] = set()
        while waiting:
            var = waiting.pop()
            cached = region.nodes.get(var)
            if var in needed or (cached is None and var not in region.sources):
                continue
            if cached is not None and cached.dim is None:
                continue
            needed.add(var)
            if cached is not None:
                softmax = region.softmaxes.get(var)
                waiting.extend(variables(cached.value) if softmax is None else [softmax.scores])
        self._used = {v for v in region.sources if v in needed}
        return {v: n for v, n in region.nodes.items() if v in needed}

    def run(self) -> dict[Any, Any]:
        """Write the blocks; return the values of the outputs in their types."""
        region = self._region
        blocks = {root: root for root, _ in self._roots.values()}
        self._me = self._emit(ops.axis_index(region.mesh, region.axis), "rank")
        for step in range(region.count):
            last = step + 1 == region.count
            following = {} if last else {root: self._handed_on(x) for root, x in blocks.items()}
            self._step(step, blocks)
            for var, moving in self._moving.items():
                self._moving[var] = self._handed_on(moving)
            blocks = following
        return self._finished()

    def _handed_on(self, block: Any) -> Any:
        """Receive the block of the preceding rank."""
        moved = ops.collective_permute(block, self._region.mesh, self._region.axis, 1, wrap=True)
        return self._emit(moved, f"{block.name}_handed_on")

    def _step(self, step: int, blocks: Mapping[Any, Any]) -> None:
        """Add the contribution of a key block."""
        env: dict[Any, Any] = {}
        walker = RingBlock(self._region, self._emit, self._me, step, env, self._stats)
        for source, (root, views) in self._roots.items():
            value = blocks[root]
            for view in views:
                value = self._emit(rebuild(view, view.op, [value, *view.args[1:]], None), "block")
            env[source] = value
        for node in self._needed.values():
            env[node.var] = walker.clone(node)
        factors = {n.var: self._weighed(n, walker) for n in self._softmaxes}
        for node in self._sums:
            value = walker.ended(
                node, path_to(self._region, node) if node.online is not None else ()
            )
            old = self._sum.get(node.var)
            if old is not None:
                factor = factors.get(node.online)
                if factor is not None:
                    old = self._emit(relax.op.multiply(old, factor), f"{node.var.name}_terms")
                value = self._emit(relax.op.add(old, value), f"{node.var.name}_terms")
            self._sum[node.var] = value
        for node in self._scatters:
            value = walker.own_keys(node)
            if not step:
                self._block_of[node.var] = value
                continue
            before = self._moving.get(node.var)
            if before is not None:
                value = self._emit(relax.op.add(before, value), f"{node.var.name}_terms")
            self._moving[node.var] = value

    def _weighed(self, node: RegionNode, walker: RingBlock) -> Any:
        """Return exponentials relative to the running maximum, and the factor for earlier ones."""
        var = node.var
        softmax = self._region.softmaxes[var]
        scores = walker.scores(softmax.scores)
        if var in self._region.whole_softmaxes:
            self._scores[var].append(scores)
        dtype = str(scores.ty.dtype)
        top, total = self._running.get(var, (None, None))
        highest = self._emit(relax.op.max(scores, [-1], keepdims=True), f"{var.name}_max")
        before = scalar(float(np.finfo(dtype).min), dtype) if top is None else top
        highest = self._emit(relax.op.maximum(highest, before), f"{var.name}_max")
        weights = walker.below(scores, highest, str(var.name))
        walker.unfinished[var] = weights
        part = self._emit(relax.op.sum(weights, [-1], keepdims=True), f"{var.name}_sum")
        factor = None
        if top is not None:
            moved = self._emit(relax.op.subtract(top, highest), f"{var.name}_moved")
            factor = self._emit(relax.op.exp(moved), f"{var.name}_factor")
            scaled = self._emit(relax.op.multiply(total, factor), f"{var.name}_sum")
            part = self._emit(relax.op.add(scaled, part), f"{var.name}_sum")
        self._running[var] = (highest, part)
        return factor

    def _finished(self) -> dict[Any, Any]:
        """Return the outputs after all blocks."""
        result: dict[Any, Any] = {}
        self._stats.update(self._running)
        for node in self._sums:
            value = self._sum[node.var]
            if node.online is not None:
                total = self._running[node.online][1]
                value = self._emit(relax.op.divide(value, total), f"{node.var.name}_wide")
            result[node.var] = value
        for node in self._scatters:
            value = self._block_of[node.var]
            if node.var in self._moving:
                home = self._moving[node.var]
                value = self._emit(relax.op.add(value, home), f"{node.var.name}_home")
            result[node.var] = value
        for node in self._softmaxes:
            softmax, stats = self._region.softmaxes[node.var], self._running[node.var]
            both = zip((softmax.top, softmax.total), stats, strict=True)
            result.update((v, s) for v, s in both if v is not None)
            if node.var in self._region.whole_softmaxes:
                result[node.var] = self._in_order(node)
        return {var: self._typed(value, var) for var, value in result.items()}

    def _typed(self, value: Any, var: Any) -> Any:
        if str(value.ty.dtype) == str(var.ty.dtype):
            return value
        return self._emit(relax.op.astype(value, str(var.ty.dtype)), str(var.name))

    def _in_order(self, node: RegionNode) -> Any:
        """Return the weights of all keys in their order, from the scores of all blocks."""
        region, name = self._region, str(node.var.name)
        key = np.arange(region.whole)
        owner = self._emit(relax.op.subtract(self._me, int64(key // region.rows)), "step")
        count = int64(region.count)
        owner = self._emit(relax.op.add(owner, count), "step")
        step = self._emit(relax.op.floor_mod(owner, count), "step")
        first = self._emit(relax.op.multiply(step, int64(region.rows)), "place")
        place = self._emit(relax.op.add(first, int64(key % region.rows)), "place")
        scores = self._emit(relax.op.concat(self._scores[node.var], axis=-1), f"{name}_scores")
        last = len(node.var.ty.shape) - 1
        scores = self._emit(relax.op.take(scores, place, axis=last, mode="clip"), f"{name}_scores")
        top, total = self._running[node.var]
        shifted = self._emit(relax.op.subtract(scores, top), f"{name}_shifted")
        raised = self._emit(relax.op.exp(shifted), f"{name}_exp")
        return self._emit(relax.op.divide(raised, total), f"{name}_whole")

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Refuse kernels that ``LowerGlobalViewToLocalView`` would lower to wrong numbers.

The pass shortens the loops that run over sharded dims. That is right if, in each block of a
kernel, the index of a sharded dim covers the dim and follows one loop; if each mesh axis belongs
to one loop, which runs over dims that this axis shards, and no others; and if a loop that is
reduced is along the only axis of its mesh, because the all-reduce runs over all workers.
``CheckShardings``, a new file in ``python/tvm/relax/distributed/transform`` that runs before the
native pass, raises an error that names the kernel otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, sym, tirx
from tvm.relax.distributed import DTensorType, transform


class _Access(NamedTuple):
    """How a dim is indexed: the loop that the index follows, its extent, and the period."""

    buffer: Any
    dim: int
    index: Any
    loop: Any = None
    extent: Any = None
    period: Any = None


def _access(buffer: Any, dim: int, index: Any, ranges: dict[Any, ir.Range]) -> _Access:
    """Find the loop whose extent follows that of a dim, if the index covers the dim."""
    analyzer = sym.Analyzer()
    for var, domain in ranges.items():
        analyzer.bind(var, domain)
    index = analyzer.simplify(index)
    domains = {v: sym.IntervalSet(d.min, d.min + d.extent - 1) for v, d in ranges.items()}
    covered = analyzer.int_set(index, domains)
    is_bounded = not covered.is_nothing() and not covered.is_everything()
    ends = [(covered.min_value, 0), (covered.max_value, buffer.ty.shape[dim] - 1)]
    if is_bounded and all(analyzer.can_prove_equal(*end) for end in ends):
        split = next(iter(sym.normalize_to_iter_sum(index, ranges, analyzer).args), None)
        loop = None if split is None else split.source.source
        if loop in ranges:
            extent, period = ranges[loop].extent, split.lower_factor * split.extent
            is_once = analyzer.can_prove(extent <= period)
            return _Access(buffer, dim, index, loop, extent, None if is_once else period)
    return _Access(buffer, dim, index)


class Kernel:
    """A kernel, and the mesh axes that shard its buffers, by buffer and dim."""

    def __init__(self, function: tirx.PrimFunc, types: list[Any], is_legalized: bool) -> None:
        self.params, self.is_legalized, self.mesh = {*function.params}, is_legalized, list[int]()
        blocks: list[Any] = []
        tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
        self.blocks = [block for block in blocks if block.name_hint != "root"]
        self.axes: dict[tuple[Any, int], frozenset[int]] = {}
        for param, ty in zip(function.params, types):
            if isinstance(ty, DTensorType):
                self.mesh = [int(n) for n in ty.device_mesh.shape]
                for axis, spec in enumerate(ty.placement.dim_specs):
                    key = param, int(spec.axis)  # the dim is -1 where the axis shards none
                    self.axes[key] = self.axes.get(key, frozenset()) | {axis}

    def faults(self) -> Iterator[str]:
        """Yield what the kernel does that sharded buffers do not allow."""
        known = -1
        while known != len(self.axes):
            known = len(self.axes)
            for block in self.blocks:
                accesses, loops = self._accesses(block), dict[Any, frozenset[int]]()
                for a in accesses:
                    axes = self.axes.get((a.buffer, a.dim))
                    if axes and (a.loop is None or a.period is not None):
                        yield f"dim {a.dim} of {a.buffer.name}, which is sharded, is at {a.index}"
                    elif axes and loops.setdefault(a.loop, axes) != axes:
                        yield f"the loop {a.loop} runs over dims that different mesh axes shard"
                yield from self._faults_of_loops(block, loops)
                for a in accesses:
                    yield from self._spread(a, loops)

    def _accesses(self, block: Any) -> list[_Access]:
        ranges = {v.var: v.dom for v in block.iter_vars}
        reads: list[tuple[Any, Any]] = []
        load = (ir.TensorLoad, lambda node: reads.append((node.source, node.indices)))
        store = (tirx.BufferStore, lambda node: reads.append((node.buffer, node.indices)))
        tvm_ffi.structural_walk(block.body, (load, store))
        return [_access(b, dim, i, ranges) for b, indices in reads for dim, i in enumerate(indices)]

    def _faults_of_loops(self, block: Any, loops: dict[Any, frozenset[int]]) -> Iterator[str]:
        for (one, axes), (other, others) in combinations(loops.items(), 2):
            if axes & others:
                yield f"one mesh axis shards the loops {one} and {other}"
        reduced = [v.var for v in block.iter_vars if int(v.iter_type) == tirx.IterVar.CommReduce]
        for loop in (loop for loop in reduced if loop in loops):
            if not self.is_legalized:
                yield f"the loop {loop}, which is reduced, is sharded: run LegalizeOps first"
            elif len(self.mesh) > 1:
                yield f"the loop {loop} is reduced along one of {len(self.mesh)} mesh axes"

    def _spread(self, a: _Access, loops: dict[Any, frozenset[int]]) -> Iterator[str]:
        """Shard what a block allocates as its loops are sharded; nothing else may be whole."""
        used = [v for v in tirx.analysis.undefined_vars(a.index) if v in loops]
        if used and used != [a.loop]:
            yield f"dim {a.dim} of {a.buffer.name} is at {a.index}, where {used[0]} is sharded"
        elif used and a.period is not None:
            local = tirx.floordiv(a.extent, prod(self.mesh[axis] for axis in loops[a.loop]))
            if not sym.Analyzer().can_prove_equal(tirx.floormod(local, a.period), 0):
                yield f"the loop {a.loop} is sharded within the period of {a.index}"
        elif used and a.buffer in self.params and (a.buffer, a.dim) not in self.axes:
            yield f"dim {a.dim} of {a.buffer.name} is whole, and the loop {a.loop} is sharded"
        elif used:
            self.axes[a.buffer, a.dim] = loops[a.loop]


def kernel_of(mod: ir.IRModule, call: ir.Call, types: list[Any]) -> Kernel | None:
    """Return the kernel of a call whose results have the given types, None without."""
    if call.op.name != "relax.call_tir":
        return None
    return Kernel(mod[call.args[0]], [*call.args[1].ty.fields, *types], is_legalized=True)


@tvm.transform.module_pass(opt_level=0, name="CheckShardings")
def check_shardings(mod: ir.IRModule, _context: tvm.transform.PassContext) -> ir.IRModule:
    """Return the module as it is, or raise ValueError for the first fault of a call."""
    functions = [f for _, f in mod.functions_items() if isinstance(f, relax.Function)]
    blocks = [block for function in functions for block in function.body.blocks]
    for binding in [binding for block in blocks for binding in block.bindings]:
        call, ty = getattr(binding, "value", None), binding.var.ty
        is_op = isinstance(call, ir.Call) and isinstance(call.op, ir.Op)
        kernel = kernel_of(mod, call, getattr(ty, "fields", [ty])) if is_op else None
        for fault in kernel.faults() if kernel else ():
            name = call.args[0] if call.op.name == "relax.call_tir" else call.op.name
            raise ValueError(f"{binding.var} = {name}(...) cannot be sharded so: {fault}")
    return mod


def install() -> None:
    """Let the check run before the native pass."""
    passes = [check_shardings, transform.LowerGlobalViewToLocalView()]
    transform.LowerGlobalViewToLocalView = lambda: tvm.transform.Sequential(passes)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compiles Relax modules for the CPU with loops a cache likes, and remembers what it compiled.

TVM's default build keeps the loops of a contraction in the order of their definition, the
reduction innermost: a matrix product then walks down the columns of its right operand, about
40 times slower than with the last output dim innermost. :data:`order_loops` reorders them. Every
element is still summed in the same order, so the bits stay those of the default build.
"""

from __future__ import annotations

import collections
import math
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.s_tir.schedule.schedule import ScheduleError

from ..errors import DistIRError, RuntimeError_

TARGET = "llvm"
_SPATIAL, _REDUCTION = 0, 2
_LANES = (64, 32, 16, 8)
_MIN_WORK = 1 << 15
_CACHE_SIZE = 1024


def _extents(sch: Any, loops: list[Any]) -> list[int] | None:
    extents = [sch.get(loop).extent for loop in loops]
    if not all(isinstance(n, tirx.IntImm) for n in extents):
        return None
    return [int(n) for n in extents]


def _order_block(sch: Any, rv: Any) -> None:
    block, loops = sch.get(rv), sch.get_loops(rv)
    kinds = [int(v.iter_type) for v in block.iter_vars]
    if len(loops) != len(kinds) or set(kinds) != {_SPATIAL, _REDUCTION} or len(block.writes) != 1:
        return
    sources = {str(r.source) for r in block.reads} - {str(block.writes[0].source)}
    extents = _extents(sch, loops)
    if len(sources) != 2 or extents is None or math.prod(extents) < _MIN_WORK:
        return
    spatial = [loop for loop, kind in zip(loops, kinds) if kind == _SPATIAL]
    reduction = [loop for loop, kind in zip(loops, kinds) if kind == _REDUCTION]
    last = extents[len(kinds) - 1 - kinds[::-1].index(_SPATIAL)]
    if last < _LANES[-1]:
        return
    lanes = next((n for n in _LANES if last % n == 0), None)
    if lanes is None or last == lanes:
        sch.reorder(*spatial[:-1], *reduction, spatial[-1])
    else:
        outer, inner = sch.split(spatial[-1], [None, lanes])
        sch.reorder(outer, *spatial[:-1], *reduction, inner)
    sch.decompose_reduction(rv, reduction[0])


def _order_function(fn: tirx.PrimFunc) -> tirx.PrimFunc:
    """Reorder the contractions of one function; one that cannot be scheduled stays as it is."""
    try:
        sch = s_tir.Schedule(ir.IRModule({"main": fn}))
        for rv in sch.get_child_blocks(sch.get_sblock("root", func_name="main")):
            _order_block(sch, rv)
    except (ScheduleError, RuntimeError, ValueError):
        # An optional step: TVM's own order is correct too, merely slower.
        return fn
    return sch.mod["main"]


def _order_all(mod: ir.IRModule, _: Any) -> ir.IRModule:
    """Reorder the loops of every contraction (two operands, one result, static sizes)."""
    changed = {
        gv: _order_function(fn) if isinstance(fn, tirx.PrimFunc) else fn
        for gv, fn in mod.functions.items()
    }
    return ir.IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)


order_loops = tvm.transform.module_pass(_order_all, opt_level=0, name="tvm_distir.OrderLoops")
"""Pass that reorders contractions. Level: any with TIR functions, before the build."""


def compile_module(mod: ir.IRModule, place: str = "module") -> relax.VMExecutable:
    """Compile for this machine's CPU: legalise, order the loops, TVM's default build.

    Raises
    ------
    RuntimeError_
        DIST0606 with the first line of TVM's message.
    """
    target = tvm.target.Target(TARGET)
    try:
        with target:
            ready = tvm.transform.Sequential(
                [
                    relax.backend.DispatchSampling(),
                    relax.backend.DispatchSortScan(),
                    relax.transform.LegalizeOps(),
                    order_loops,
                ]
            )(mod)
        return tvm.compile(ready, target)
    except DistIRError:
        raise
    except Exception as err:
        lines = [line.strip() for line in str(err).splitlines() if line.strip()]
        raise RuntimeError_(
            "DIST0606",
            f"{type(err).__name__}: {' '.join(lines[:3])[:400] or 'no message'}",
            place=place,
            remedy="Compile the module with tvm.compile to see TVM's whole message.",
        ) from err


class KernelCache:
    """Compiled modules by structure; the least recently used are dropped first.

    Parameters
    ----------
    size : int
        How many modules are kept.
    machines : bool
        Whether to keep a ready ``VirtualMachine``, or the loaded library to make several of.
    """

    def __init__(self, size: int = _CACHE_SIZE, *, machines: bool = True) -> None:
        self._size = size
        self._machines = machines
        self._kept: collections.OrderedDict[int, list[tuple[ir.IRModule, Any]]] = (
            collections.OrderedDict()
        )
        self.compiled = 0

    def get(self, mod: ir.IRModule, place: str) -> Any:
        """Return what the cache keeps of a module, compiling it at its first use."""
        key = int(tvm_ffi.structural_hash(mod))
        bucket = self._kept.setdefault(key, [])
        self._kept.move_to_end(key)
        for other, machine in bucket:
            if tvm_ffi.structural_equal(mod, other):
                return machine
        library = compile_module(mod, place).jit()
        machine = relax.VirtualMachine(library, tvm.cpu()) if self._machines else library
        self.compiled += 1
        bucket.append((mod, machine))
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return machine

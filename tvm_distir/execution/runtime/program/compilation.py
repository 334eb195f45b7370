# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile Relax modules, for CPUs with cache-friendly loops.

TVM's default build keeps the loops of a contraction in the order of their definition, the
reduction innermost: a matrix product then walks down the columns of its right operand, some 50
times slower than with a tile of rows and columns innermost. :data:`order_loops` makes such
tiles. Every element is still summed in the same order, so the bits stay those of the default
build for the same target.
"""

from __future__ import annotations

import math
import threading

import tvm
from tvm import ir, relax, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.s_tir.schedule.schedule import ScheduleError

from tvm_distir.core.ir import outline_branches
from tvm_distir.core.rewriting import map_functions, plain_calls
from tvm_distir.support import DistIRError, EngineError, ForkSafeLock
from tvm_distir.transforms import kernel_passes, repair_kernels

from .gpu_passes import check_graphs, check_threads, gpu_passes
from .permuted_products import read_permuted
from .shared_kernels import SharedKernels
from .targets import target_in_scope

_SPATIAL, _REDUCTION = 0, 2
_LANES = (64, 32, 16, 8)
_ROWS = (4, 2)
_PLANE = 2048
"""Elements of a plane of results that stay in the first-level cache."""
_MIN_WORK = 1 << 15

_COMPILE = "Compile the module with tvm.compile to see TVM's full message."
compile_turn = ForkSafeLock(threading.RLock)
"""Held while this package's runtime builds or compiles IR."""


def _extents(sch: s_tir.Schedule, loops: list[LoopRV]) -> list[int] | None:
    extents = [sch.get(loop).extent for loop in loops]
    if not all(isinstance(n, tirx.IntImm) for n in extents):
        return None
    return [int(n) for n in extents]


def _leaves(sch: s_tir.Schedule, rv: SBlockRV) -> list[SBlockRV]:
    """Return the innermost blocks, in order."""
    inner = sch.get_child_blocks(rv)
    return [leaf for block in inner for leaf in _leaves(sch, block)] if inner else [rv]


def _divisor(size: int, divisors: tuple[int, ...]) -> int | None:
    return next((n for n in divisors if size % n == 0), None)


def _small_plane(
    sch: s_tir.Schedule, rv: SBlockRV, spatial: list[LoopRV], reduction: list[LoopRV]
) -> None:
    """Order the loops of small planes, as in late convolutional layers: both dims innermost."""
    sch.reorder(*spatial[:-2], *reduction, *spatial[-2:])
    block = sch.get(rv)
    kinds = {str(part.source.dtype) for part in (*block.reads, *block.writes)}
    if "bfloat16" not in kinds:  # TVM 0.27 stores it as uint16, of which it makes no vectors
        # LLVM alone leaves a row of 7 scalar; as a vector of 7 it is 40 times faster.
        sch.vectorize(spatial[-1])
    sch.decompose_reduction(rv, reduction[0])


def _tile(sch: s_tir.Schedule, rv: SBlockRV, spatial: int) -> None:
    """Order the loops (columns, other spatial ones, reduction): rows and columns innermost."""
    loops = sch.get_loops(rv)
    extents = _extents(sch, loops) or []
    columns, others, reduction = loops[0], loops[1:spatial], loops[spatial:]
    width, inner = _divisor(extents[0], _LANES), []
    outer = []
    if width is not None and width < extents[0]:
        head, columns = sch.split(columns, [None, width])
        outer.append(head)
    rows = _divisor(extents[spatial - 1], _ROWS) if others else None
    if rows is not None and width is not None:
        head, tail = sch.split(others[-1], [None, rows])
        others = [*others[:-1], head]
        inner.append(tail)
        sch.unroll(tail)
    sch.reorder(*outer, *others, *reduction, *inner, columns)
    sch.decompose_reduction(rv, reduction[0])


def _order_block(sch: s_tir.Schedule, rv: SBlockRV) -> None:
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
    columns = extents[len(kinds) - 1 - kinds[::-1].index(_SPATIAL)]
    if _divisor(columns, _LANES) is None and columns < _LANES[1] and len(spatial) > 1:
        if _LANES[1] <= math.prod(n for n in _extents(sch, spatial[-2:]) or []) <= _PLANE:
            _small_plane(sch, rv, spatial, reduction)
            return
    if columns < _LANES[-1]:
        return
    sch.reorder(spatial[-1], *spatial[:-1], *reduction)
    parts = [rv]
    if _divisor(columns, _LANES) is None and columns > _LANES[0]:
        # A split that leaves a rest would put a condition into the innermost loop.
        root = sch.get_sblock("root", func_name="main")
        before = {str(sch.get(leaf).name_hint) for leaf in _leaves(sch, root)}
        sch.loop_partition(spatial[-1], [columns // _LANES[0] * _LANES[0]])
        parts = [leaf for leaf in _leaves(sch, root) if str(sch.get(leaf).name_hint) not in before]
    for part in parts:
        _tile(sch, part, len(spatial))


def _order_function(fn: tirx.PrimFunc) -> tirx.PrimFunc:
    """Reorder the contractions of a function; those that cannot be scheduled stay unchanged."""
    try:
        sch = s_tir.Schedule(ir.IRModule({"main": fn}))
        for rv in _leaves(sch, sch.get_sblock("root", func_name="main")):
            _order_block(sch, rv)
    except (ScheduleError, RuntimeError, ValueError):
        # An optional step: TVM's order is correct too, merely slower.
        return fn
    return sch.mod["main"]


def _order_all(mod: ir.IRModule, _: tvm.transform.PassContext) -> ir.IRModule:
    """Reorder the loops of every contraction (two operands, a result, static sizes)."""
    return map_functions(mod, _order_function, tirx.PrimFunc)


order_loops = tvm.transform.module_pass(_order_all, opt_level=0, name="tvm_distir.OrderLoops")
"""Pass that reorders contractions. Level: any with TIR functions, before the build."""


def _build(
    mod: ir.IRModule, target: tvm.target.Target, kernels: SharedKernels | None
) -> relax.VMExecutable:
    """Build a legalized module by TVM's default pipeline, on a GPU with DLight's schedules."""
    if "gpu" not in target.keys:
        mod = repair_kernels(order_loops(mod) if target.kind.name == "llvm" else mod)
        if kernels is None:
            return tvm.compile(mod, target)
        with target:
            mod = relax.get_pipeline("default")(mod)
        return kernels.compile(mod, target)
    check_graphs()
    with target:
        mod = tvm.transform.Sequential(gpu_passes())(mod)
        mod = repair_kernels(relax.get_default_pipeline(target)(mod))
    check_threads(mod, target)
    return tvm.compile(mod, target, relax_pipeline=None)


def not_compiled(error: Exception, location: str) -> EngineError:
    """Return the failure (DIST0606) of a compilation, with the first line of TVM's message."""
    problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return EngineError("DIST0606", problem, location=location, remedy=_COMPILE)


def compile_module(
    mod: ir.IRModule, location: str = "module", kernels: SharedKernels | None = None
) -> relax.VMExecutable:
    """Compile a module: legalize, order loops, repair kernels, and run TVM's default build.

    The target is that in scope (``with target:``), or else this machine's CPU. With ``kernels``
    the machine code of kernels of earlier programs is linked; such a result runs in this process
    alone.

    Raises
    ------
    EngineError
        DIST0606 with the first line of TVM's message, DIST0608 for a kernel without threads on
        a GPU.
    """
    target = target_in_scope()
    try:
        with compile_turn():
            # else TVM hands storage of a branch to what follows it
            mod = outline_branches(plain_calls(mod))
            if "gpu" in target.keys:
                mod = read_permuted(mod)
            with target:
                ready = tvm.transform.Sequential(kernel_passes())(mod)
            return _build(ready, target, kernels)
    except DistIRError:
        raise
    except Exception as err:
        lines = [line.strip() for line in str(err).splitlines() if line.strip()]
        problem = f"{type(err).__name__}: {' '.join(lines[:3])[:400] or 'no message'}"
        raise EngineError("DIST0606", problem, location=location, remedy=_COMPILE) from err

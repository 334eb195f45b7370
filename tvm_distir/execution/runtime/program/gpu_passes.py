# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fuse and schedule kernels for GPUs, where TVM's default pipeline fails on some programs.

The passes do what the default pipeline of a GPU does first. It finds the kernels fused and
scheduled then, and does the rest.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax, s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.schedule.schedule import ScheduleError

from tvm_distir.core.rewriting import all_bindings
from tvm_distir.support import EngineError
from tvm_distir.transforms import register_gpu_reducers, repair_kernels

from .tensor_cores import TensorCoreProduct

_CUDA_GRAPHS = "relax.backend.use_cuda_graph"


def _is_projection(fn: ir.BaseFunc) -> bool:
    """Return whether a function is a group of fused ops that calls no kernel."""
    return (
        isinstance(fn, relax.Function)
        and bool(fn.attrs)
        and "Primitive" in fn.attrs
        and not any(isinstance(b.value, ir.Call) for b in all_bindings(fn.body))
    )


def _inline_all_projections(mod: ir.IRModule, _: object) -> ir.IRModule:
    """Inline groups of items of nested tuples, which FuseOps makes and FuseTIR fails on."""
    projections = {
        gv: fn.without_attr("Primitive") for gv, fn in mod.functions.items() if _is_projection(fn)
    }
    if not projections:
        return mod
    functions = {
        gv: fn.inline_functions(projections) if isinstance(fn, relax.Function) else fn
        for gv, fn in mod.functions.items()
        if gv not in projections
    }
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


_LOWER_REDUCTIONS = tvm.transform.Sequential(
    [s_tir.transform.CanonicalizeLoop(), s_tir.transform.LowerCrossThreadReduction()]
)


class _Optional(dlight.base.ScheduleRule):  # type: ignore[misc,unused-ignore]
    """A rule of DLight that leaves a kernel to the next rule where TVM fails on it."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, tunable: bool) -> Any:
        """Return the schedule of a kernel, or None."""
        try:
            schedule = self._rule.apply(func, target, tunable)
            if isinstance(schedule, s_tir.Schedule):
                # TVM reduces across threads by the reductions that it knows only.
                _LOWER_REDUCTIONS(repair_kernels(schedule.mod))
            return schedule
        except (AssertionError, ScheduleError, RuntimeError, ValueError):
            return None  # a kernel that no rule binds to threads is refused later


def gpu_passes() -> list[ir.transform.Pass]:
    """Return the passes that fuse and schedule the kernels of a legalized module.

    They run in the scope of the target.
    """
    register_gpu_reducers()
    gpu = dlight.gpu
    rules = (
        TensorCoreProduct(),
        gpu.Matmul(),
        gpu.GEMV(),
        gpu.Reduction(),
        gpu.GeneralReduction(),
    )
    return [
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        tvm.transform.module_pass(
            _inline_all_projections, opt_level=0, name="tvm_distir.InlineProjections"
        ),
        relax.transform.FuseTIR(),
        dlight.ApplyDefaultSchedule(*map(_Optional, rules), gpu.Fallback()),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),  # so that the default pipeline does not fuse again
    ]


def check_graphs() -> None:
    """Refuse (DIST0606) CUDA graphs: TVM captures packed functions as if they were kernels.

    A replay would skip a collective, a call of a library, or the position of the rank.
    """
    if tvm.transform.PassContext.current().config.get(_CUDA_GRAPHS):
        problem = "a CUDA graph would capture calls of collectives and of libraries"
        remedy = "Compile without this option of the pass context."
        raise EngineError("DIST0606", problem, location=_CUDA_GRAPHS, remedy=remedy)


def _has_threads(stmt: tirx.Stmt) -> bool:
    """Return whether a statement, or a statement inside of it, runs on threads of a GPU."""
    if getattr(stmt, "thread_binding", None) is not None:
        return True
    if str(getattr(stmt, "attr_key", "")) == "thread_extent":
        return True
    parts = [getattr(stmt, name, None) for name in ("body", "block", "then_case", "else_case")]
    parts += getattr(stmt, "seq", None) or ()
    return any(_has_threads(part) for part in parts if part is not None)


def check_threads(mod: ir.IRModule, target: tvm.target.Target) -> None:
    """Refuse (DIST0608) kernels that TVM would build for the host and hand pointers of a GPU."""
    for gv, fn in mod.functions.items():
        if not isinstance(fn, tirx.PrimFunc) or (fn.attrs and "tirx.is_host_func" in fn.attrs):
            continue
        if not _has_threads(fn.body):
            raise EngineError(
                "DIST0608",
                f"its loops are not bound to threads, as the target {target.kind.name} requires",
                location=str(gv.name_hint),
                remedy="Bind its loops to threads, or remove its attribute tirx.is_scheduled, so "
                "that TVM's DLight schedules it.",
            )

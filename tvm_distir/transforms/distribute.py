# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the passes from an imported module to each device's program, in order (``distribute``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import ir

from tvm_distir.core.ir import check_module, relax_functions
from tvm_distir.core.ir.attributes import PIPELINE_ATTR, training_notes
from tvm_distir.core.plan import Plan, PlanLike, as_plan
from tvm_distir.core.propagation import Decision
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import System
from tvm_distir.support import UsageError

from .registry import passes_for
from .spec import PassSpec

UNIT = "unit"
"""In the place of the bytes of a bucket: one bucket of gathers of weights, and one of reductions,
for each call of a private function, as FSDP treats a block; the next unit is gathered ahead."""
Named = tuple[str, dict[str, Any]]
"""A pass by name, with options."""


def communication_passes(
    mod: ir.IRModule,
    system: System | str | None = None,
    *,
    bucket_bytes: int | str | None = None,
    overlap: System | str | None = None,
    ahead_bytes: int | None = None,
    overlap_activations: bool = False,
    overlap_optimizer: bool = False,
    offload_optimizer: bool = False,
) -> tuple[Named, ...]:
    """Return the level-5 passes on collectives that :func:`distribute` runs last.

    Parameters
    ----------
    mod : IRModule
        The module that is distributed. Where a system is given, a training step has its
        reductions and gathers of weights merged and its collectives overlapped with other work by
        default.
    system, bucket_bytes, overlap, ahead_bytes, overlap_activations
        See :func:`distribute`.
    overlap_optimizer, offload_optimizer
        See :func:`distribute`.

    Raises
    ------
    UsageError
        DIST0151 where states are to be offloaded and there are none.
    """
    usual = system is not None and is_training_step(mod)
    if bucket_bytes is None and usual:
        bucket_bytes = UNIT
    options: dict[str, Any] = {"units": True} if bucket_bytes == UNIT else {}
    if bucket_bytes and not options:
        options = {"bucket_bytes": bucket_bytes}
    passes: list[Named] = [("gather-first", {})] if overlap_optimizer else []
    if options:
        separate = overlap_optimizer or (mod.attrs is not None and PIPELINE_ATTR in mod.attrs)
        private = {"private": True} if separate and "units" in options else {}
        passes += [("bucket", {**options, **private}), ("bucket-gathers", options)]
    clock = system if overlap is None and usual else overlap
    if clock is not None and ahead_bytes != 0:
        timed = {"system": clock, "ahead_bytes": ahead_bytes}
        scheduled = {**timed, "activations": overlap_activations}
        passes += [("split", {}), ("schedule", scheduled), ("defer", {})]
        units = {"units": True} if "units" in options and ahead_bytes is None else {}
        passes += [("prefetch", {**timed, **units})]
    if offload_optimizer:
        _check_states(mod)
        passes.append(("offload", {}))
    return tuple(passes)


def _check_states(mod: ir.IRModule) -> None:
    """Refuse (DIST0151) to offload the states of a step that has none."""
    if not any(training_notes(fn, "states") for _, fn in relax_functions(mod)):
        raise UsageError(
            "DIST0151", "offload_optimizer is given, but the step has no states of an optimizer",
            location="offload_optimizer", remedy="Remove it, or train with adamw, for example.",
        )  # fmt: skip


def is_training_step(mod: ir.IRModule) -> bool:
    """Return whether a module is a training step, pipelined or not."""
    return any(training_notes(fn, "updated") for _, fn in relax_functions(mod))


def pipeline(
    plan: Plan,
    *,
    system: System | str | None = None,
    later: Sequence[Named] = (),
    decision: Decision | None = None,
) -> tvm.transform.Sequential:
    """Return the passes of :func:`distribute`: annotate, propagate, legalize, optimize, lower.

    A plan with rings adds ``RingAttention``. The passes ``later`` follow, as those of
    :func:`communication_passes`.

    With a ``decision`` about a module at level 2 the passes begin with that which writes it.
    """
    steps: list[Named] = [
        (name, {**options, "system": system}) for name, options in passes_for(plan)
    ]
    if decision is not None:
        steps = [(name, options) for name, options in steps if name != "annotate"]
        steps[0] = (steps[0][0], {**steps[0][1], "decision": decision})
    passes = [PassSpec(name).make(**options) for name, options in (*steps, *later)]
    return tvm.transform.Sequential(passes, name="tvm_distir.distribute")


@gc_paused()
def distribute(
    mod: ir.IRModule,
    plan: PlanLike = None,
    *,
    system: System | str | None = None,
    bucket_bytes: int | str | None = None,
    overlap: System | str | None = None,
    ahead_bytes: int | None = None,
    overlap_activations: bool = False,
    overlap_optimizer: bool = False,
    offload_optimizer: bool = False,
) -> ir.IRModule:
    """Distribute a module according to a plan and lower it to the program of each device.

    Parameters
    ----------
    mod : IRModule
        Level 1 or 2; it is not changed.
    plan : Plan, mapping, str or Path, optional
        A plan, its JSON form, or the path of its file. None: the module's annotations.
    system : System or str, optional
        Whose times decide what the plan leaves open, and by which collectives values move. None:
        bytes and operations count, by fixed weights.
    bucket_bytes : int or "unit", optional
        Merge small reductions, and small gathers, into buckets of at most so many bytes. 0: merge
        none, which takes no copies. ``"unit"``: merge the gathers of weights, and the
        ``reduce_scatter`` calls, of a private function whatever their size, as FSDP gathers and
        reduces a block by one flat buffer, and other reductions into buckets of 25 MiB; gather
        the next block while one computes, whatever bytes that takes. None: ``"unit"`` for a
        training step for a system, otherwise 0.
    overlap : System or str, optional
        Split collectives into a start and a done and order other work between them, by the times
        of this system. None: leave the order as it is, which takes least memory; but a training
        step for a system has its own.
    ahead_bytes : int, optional
        Most bytes that work running ahead may take in a block beyond those of the order as it is.
        None: a sixteenth of them. As many again may be gathered before the function is called
        that needs it (:func:`.PrefetchGathers`). 0: leave the order as it is.
    overlap_activations : bool
        Whether collectives of activations, such as those of tensor parallelism, overlap with other
        work too. Otherwise they block, as in most frameworks, which overlap gathers of weights,
        reductions of gradients and messages.
    overlap_optimizer : bool
        Whether weights that an optimizer updates as shards are gathered at the beginning of the
        next step, where its forward pass overlaps with the gathers (:func:`.GatherAtStart`).
    offload_optimizer : bool
        Whether the states of the optimizer of a training step are in the memory of the host between
        their updates (:func:`.OffloadStates`).

    Returns
    -------
    IRModule
        The module at level 5: local tensors, collectives, an entry function with ``dist.io`` per
        mesh, or, where meshes share devices, for all devices that belong to the same meshes.

    Raises
    ------
    DistIRError
        What the passes raise, naming the place.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> dist = td.distribute(mod, plan)
    >>> dist["main"].params[0].ty
    R.Tensor((4, 4), dtype="float32")
    """
    check_module(mod, "td.distribute")
    later = communication_passes(
        mod, system, bucket_bytes=bucket_bytes, overlap=overlap, ahead_bytes=ahead_bytes,
        overlap_activations=overlap_activations, overlap_optimizer=overlap_optimizer,
        offload_optimizer=offload_optimizer,
    )  # fmt: skip
    return pipeline(as_plan(plan, mod), system=system, later=later)(mod)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Look up passes by name, including those of plugins.

A name represents a factory that :func:`~.declaration.module_pass` made, with its declaration. Names
are known without TVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm_distir.support import Registry, check_choice

if TYPE_CHECKING:
    from tvm_distir.core.passes import PassInfo
    from tvm_distir.core.plan import Plan

FUSE_ATTENTION = "fuse-attention"
"""The pass before all others of a plan that is for fused attention."""
WRITE_ATTENTION = "write-attention"
"""The pass that lowers fused attention to products and a softmax."""
PASSES = Registry(
    "tvm_distir.passes",
    {
        name: f"tvm_distir.{target}"
        for name, target in {
            "train": "transforms.training.passes:TrainStep",
            "outline": "transforms.outline.outliner:OutlineRepeatedLayers",
            "inline": "transforms.inline.passes:InlinePrivateFunctions",
            FUSE_ATTENTION: "transforms.attention.passes:FuseAttention",
            "annotate": "core.passes.annotate.passes:AnnotateSharding",
            "propagate": "core.passes.propagate.passes:PropagateSharding",
            "order": "transforms.axis_orders.passes:OrderAxes",
            "legalize": "core.passes.legalize.passes:LegalizeRedistribute",
            "optimize": "transforms.optimize.passes:OptimizeCollectives",
            "share": "transforms.optimize.share:ShareCollectives",
            "merge": "transforms.optimize.merge:MergeReductions",
            "slices": "transforms.optimize.moved_collectives:MoveSlices",
            "gathers": "transforms.optimize.moved_collectives:MoveGathers",
            "cancel": "transforms.optimize.share:CancelCollectives",
            "fuse": "transforms.optimize.fuse:FuseCollectives",
            "unused": "transforms.optimize.unused:RemoveUnused",
            "regather": "transforms.optimize.regather:RegatherActivations",
            "lower": "core.passes.lower.passes:LowerDistIR",
            "replicate-inputs": "transforms.optimize.replicate_inputs:ReplicateInputs",
            "ring": "transforms.attention.ring:RingAttention",
            WRITE_ATTENTION: "transforms.attention.writing:WriteAttention",
            "donate": "transforms.optimize.donate_inputs:DonateInputs",
            "gather-first": "transforms.optimize.first_gathers:GatherAtStart",
            "bucket": "transforms.optimize.bucket:BucketReductions",
            "bucket-gathers": "transforms.optimize.bucket:BucketGathers",
            "split": "transforms.optimize.collective_schedule:SplitCollectives",
            "schedule": "transforms.optimize.collective_schedule:ScheduleCollectives",
            "defer": "transforms.optimize.deferral:DeferReductions",
            "prefetch": "transforms.optimize.prefetch:PrefetchGathers",
            "offload": "transforms.optimize.host_states:OffloadStates",
            "in-turn": "transforms.training.pipeline.expand_passes:SerializePipeline",
            "expand": "transforms.training.pipeline.expand_passes:ExpandSchedule",
            "ccl": "models.export.ccl:LowerToCCL",
            "export": "performance.program.export_pass:ExportProgram",
        }.items()
    },
)
"""In the order in which a module meets them."""

PIPELINE = ("annotate", "propagate", "order", "legalize", "optimize", "lower")
"""The passes of ``distribute``, from level 1 to level 5."""


def passes_for(plan: Plan) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the passes that carry out a plan, with the options that it specifies."""
    steps: list[tuple[str, dict[str, Any]]] = [(name, {"plan": plan}) for name in PIPELINE]
    if plan.complete:
        steps[PIPELINE.index("propagate")][1]["complete"] = True
    if plan.regather:
        steps.insert(-1, ("regather", {"axes": plan.regather}))
    if len(plan.meshes) > 1 and plan.schedule is None:
        steps.append(("replicate-inputs", {}))
    if plan.attention:
        steps.insert(0, (FUSE_ATTENTION, {}))
    return (*steps, *([("ring", {"axes": plan.ring})] if plan.ring else []))


def pass_names() -> tuple[str, ...]:
    """Return the names of all passes, without importing them."""
    return PASSES.names()


def find_pass(name: str) -> PassInfo:
    """Return the pass of a name.

    Raises
    ------
    UsageError
        DIST0152 for an unknown name.
    DependencyError
        DIST0114 if another package offers it and it cannot be loaded, or is no pass.
    """
    from tvm_distir.core.passes import info_of

    check_name(name)
    info = info_of(PASSES.load(name))
    if info is None:
        fault = "it is not a factory created with tvm_distir.core.passes.declaration.module_pass"
        raise PASSES.offered()[name].fault(fault)
    return info


def check_name(name: str, location: str = "passes") -> None:
    """Reject an unknown pass name (UsageError DIST0152)."""
    check_choice(name, "pass", pass_names(), location)

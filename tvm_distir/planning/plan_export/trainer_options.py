# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read from a plan what the options of several trainers state: stages, batches, recomputation."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_distir.core.plan import MEGATRON, NONE, Schedule

from .axis_uses import DATA, ZERO
from .exported_plan import ExportedPlan, unsupported


def pipeline_of(exported: ExportedPlan) -> Schedule | None:
    """Return the schedule of a plan with several stages."""
    schedule = exported.plan.schedule
    return schedule if schedule is not None and schedule.stages > 1 else None


def batch_sizes(exported: ExportedPlan) -> tuple[int, int] | None:
    """Return the samples of a micro-batch on a device, and those of the step; None if unknown."""
    sizes = {parameter.shape[0] for parameter in exported.parameters
             if parameter.is_data and parameter.shape and len(parameter.shape) > 1}  # fmt: skip
    if len(sizes) != 1:
        return None
    [size] = sizes
    schedule = exported.plan.schedule
    replicas = exported.degree(DATA) * exported.degree(ZERO)
    return size // replicas, size * (schedule.micro_batches if schedule is not None else 1)


def recomputation(exported: ExportedPlan, trainer: str, words: Mapping[str, str]) -> str:
    """Return the word of a trainer for the recomputation of all layers, empty for none.

    Parameters
    ----------
    exported : ExportedPlan
    trainer : str
        Its name, for messages.
    words : mapping of str to str
        Its words by the policies that recompute the same.

    Raises
    ------
    PlanError
        DIST0241 layers have different policies, or the trainer has no such recomputation.
    """
    policies = set(exported.plan.recompute.values()) or {NONE}
    if len(policies) > 1:
        raise unsupported("layers have different recomputation policies", "Use one policy.")
    [policy] = policies
    if policy in (NONE, MEGATRON):
        return ""
    if policy not in words:
        known = ", ".join(f"{name} (its {word})" for name, word in words.items())
        remedy = f"Use {known}, or none." if known else "Switch it on in the model there."
        raise unsupported(f'{trainer} has no recomputation "{policy}"', remedy)
    return words[policy]

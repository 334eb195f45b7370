# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the program of a measured step through the usual pipeline."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

from tvm import ir

from tvm_distir.core.ir import R
from tvm_distir.core.plan import CHECKPOINT, Plan, PlanRule
from tvm_distir.models import load_model, zoo
from tvm_distir.performance import Program
from tvm_distir.planning.study import Study
from tvm_distir.planning.sweep.cache import kept_program

from .rows import MeasuredStep, StepRow

DROPOUT = 0.1
"""Megatron's default."""


def program_of(row: MeasuredStep | StepRow, cached: bool = True) -> Program:
    """Return the program of a row: zoo model, training step, strategies, passes, export.

    Parameters
    ----------
    row : MeasuredStep or StepRow
    cached : bool
        Whether to keep it on disk, as :func:`tvm_distir.planning.sweep.cache.kept_program` does.
    """
    if not cached:
        return _make(row)
    return kept_program(astuple(replace(row, time_s=0.0, weight=1.0)), lambda: _make(row))


def _make(row: MeasuredStep | StepRow) -> Program:
    return _of_gpt(row) if isinstance(row, MeasuredStep) else _of_model(row)


def _of_model(row: StepRow) -> Program:
    return Study(
        load_model(row.model),
        strategy="+".join(["pipeline:micro_batches=1", *filter(None, [row.strategy])]),
        mesh={"pp": 1, **dict(row.axes)},
        train={"loss": row.loss, "optimizer": row.optimizer},
        recompute="none",
    ).program


def _of_gpt(row: MeasuredStep) -> Program:
    model = zoo.gpt(
        layers=row.layers, hidden=row.hidden, heads=row.heads, vocab=row.vocab,
        batch=row.micro_batch * row.dp, seq=row.seq, positions=row.seq, dtype="float16",
        dropout=DROPOUT, fused_qkv=1,
    )  # fmt: skip
    kind = "interleaved" if row.chunks > 1 else "1f1b"
    schedule: dict[str, Any] = {
        "kind": kind, "stages": row.pp, "micro_batches": row.micro_batches,
    }  # fmt: skip
    parts = row.pp * row.chunks
    if row.chunks > 1:
        schedule["chunks"] = row.chunks
    if parts > 1:  # layers divided evenly, whatever embedding and head take
        ends = [(k + 1) * row.layers // parts - 1 for k in range(parts - 1)]
        schedule["cuts"] = [f"layer_output{end or ''}" for end in ends]
    chunks = f",schedule=interleaved,chunks={row.chunks}" if row.chunks > 1 else ""
    strategies = [f"pipeline:micro_batches={row.micro_batches}{chunks}"]
    if row.dp > 1:
        strategies.append("data_parallel")
    if row.tp > 1:
        strategies.append(f"megatron:sequence={row.sequence_parallel}")
    mesh = {"pp": row.pp, "dp": row.dp, "tp": row.tp}
    mesh = {axis: size for axis, size in mesh.items() if size > 1 or axis == "pp"}
    study = Study(
        model, strategy="+".join(strategies), mesh=mesh, schedule=schedule,
        train={"optimizer": "adamw", "master": True}, recompute=f"layer={row.recompute}",
    )  # fmt: skip
    if row.tp > 1 and row.recompute == CHECKPOINT and not row.sequence_parallel:
        study = Study(study.step, _summed_again(study.step, study.step_plan))
    return study.program


def _summed_again(step: ir.IRModule, plan: Plan) -> Plan:
    """Return a plan that sums a layer's result over ``tp`` also where it is recomputed.

    Megatron's projection does: 6 all-reduces per layer (Narayanan et al. 2021, section 3.2).
    """
    first_result = step["layer_forward"].body.body.fields[0]
    (mesh,) = plan.meshes
    placement = tuple(R if axis == "tp" else None for axis in mesh.axes)
    rule = PlanRule("value", str(first_result.name), placement, mesh.name, function="layer_forward")
    return replace(plan, rules=(*plan.rules, rule))

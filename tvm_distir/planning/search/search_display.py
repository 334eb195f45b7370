# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show the result of a search: its plans, its candidates, and the costs of other placements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_distir.support import Column, DataTable
from tvm_distir.support.display import units

from .bands import band_line


def _share(value: float) -> str:
    return units.share(value, 1.0)


_PLANS = (
    Column("number", "#", str),
    Column("plan", "plan"),
    Column("divides", "divides"),
    Column("time_s", "step", units.duration),
    Column("compute_share", "compute", _share),
    Column("comm_share", "comm", _share),
    Column("price_s", "cost", units.duration),
    Column("gap", "gap", lambda gap: f"{100 * gap:.2f}%"),
    Column("peak_bytes", "peak", units.size),
)
_DOLLARS = Column("cost_per_step_usd", "$ per step", "{:.4g}".format)
_CANDIDATES = (
    Column("candidate", "candidate"),
    Column("state", "state"),
    Column("stages", "stages", str),
    Column("micro_batches", "micro-batches", str),
    Column("recompute", "recompute"),
    Column("time_s", "step", units.duration),
    Column("peak_bytes", "peak", units.size),
    Column("least_s", "lower bound", units.duration),
    Column("why", "reason"),
)
_PLACEMENTS = (
    Column("weight", "weight"),
    Column("count", "count", str),
    Column("placement", "placement"),
    Column("second_best", "second best"),
    Column("added_cost_s", "added cost", units.difference),
)


def plan_table(result: Any) -> DataTable:
    """Return the fastest plan of each group, the fastest first."""
    rows = []
    for group in result.shown:
        row, number = group.first.row, result.plans.index(group.first) + 1
        name = f"{group.name}: {_name(group.first)}" if group.name else _name(group.first)
        rows.append(
            [number, name, row.parts or None, group.first.time_s, *row.shares, row.price_s, row.gap,
             row.peak_bytes or 0]
        )  # fmt: skip
    if result.price_per_s_usd is None:
        return DataTable("Plans", _PLANS, rows)
    costs = [group.first.time_s * result.price_per_s_usd for group in result.shown]
    rows = [[*row, cost] for row, cost in zip(rows, costs, strict=True)]
    return DataTable("Plans", (*_PLANS, _DOLLARS), rows)


def _name(plan: Any) -> str:
    """Return the meshes of a plan, and its strategy where it has one."""
    why = f" ({plan.row.why})" if plan.row.why else ""
    return " = ".join([plan.row.candidate.key, *plan.also]) + why


def _other_plans(result: Any) -> list[str]:
    """Return a line for each row that stands for several plans."""
    numbers = {id(plan): number for number, plan in enumerate(result.plans, 1)}
    lines = []
    for group in result.shown:
        if len(group.plans) == 1:
            continue
        others = ", ".join(
            f"{_name(plan)} {units.duration(plan.time_s)}"
            + (f" (plan {numbers[id(plan)]})" if id(plan) in numbers else "")
            for plan in group.plans[1:]
        )
        line, known = f"plan {numbers[id(group.first)]} is one plan for a trainer with {others}", ""
        if group.of_trainers is not None:
            known = (
                f"; placements that its options do not state gain {units.share(group.gain, 1.0)} "
                f"over {group.of_trainers.row.why}"
            )
        lines.append(line + known)
    return lines


def _of_stack(result: Any) -> list[str]:
    """Return what the plans of a trainer are, and what placements that it does not have gain."""
    if not result.stack:
        return []
    lines = [f"plans are those that options of {result.stack} state (export-plan)"]
    if result.beyond is not None and result.plans:
        beyond, first_s = result.beyond, result.plans[0].time_s
        gain = units.share(first_s - beyond.time_s, first_s)
        words = f"gains {gain} over" if beyond.time_s < first_s else "is no faster than"
        lines.append(
            f"best: {beyond.row.candidate.key} takes {units.duration(beyond.time_s)} and {words} "
            f"plan 1; {result.stack} has no options for it: {beyond.row.why}"
        )
    return lines


def candidate_table(result: Any) -> DataTable:
    """Return everything that was enumerated."""
    rows = [
        [row.candidate.key, row.state, row.candidate.stages, row.candidate.micro_batches,
         row.candidate.recompute, row.time_s, row.peak_bytes, row.least_s, row.why or None]
        for row in result.rows
    ]  # fmt: skip
    return DataTable("Candidates", _CANDIDATES, rows)


def placement_table(result: Any) -> DataTable:
    """Return what the second-best placement of each weight costs."""
    rows = [
        [f"{why.weight} ({why.entry})", why.alike, why.form, why.other, why.dearer_s]
        for why in result.why
    ]
    return DataTable("Cost added by the second-best placement of each weight", _PLACEMENTS, rows)


def search_headline(result: Any) -> str:
    """Return the number of candidates by outcome, the lower bound, and the baseline."""
    counts = ", ".join(f"{count} {state}" for state, count in sorted(result.space.items()))
    lines = [result.weights] if result.weights else []
    lines += [f"candidates: {counts}" + ("" if result.complete else " (stopped early)")]
    lines += _other_plans(result) + _of_stack(result)
    if not result.complete and not result.plans:
        lines.append(
            "no plan was simulated in the time limit: use a longer --time-limit (time_limit_s=), "
            "or continue with -o DIR --resume"
        )
    if any(plan.row.price_s is not None for plan in result.plans):
        lines.append(
            "cost: the time of all ops and collectives in sequence, without fused kernels, by "
            "which placements are chosen; gap: the most by which it exceeds the least cost"
        )
    if result.plans and result.least_s:
        lines.append(f"lower bound of the step time: {units.duration(result.least_s)}")
        lines += _excess(result.above_bound, result.least_s)
    band = result.band(result.plans[0].row) if result.plans else None
    if band is not None:
        count = len(result.plans)
        lines.append(band_line(band, result.plans[0].time_s, result.level, count))
    if result.baseline is not None and result.baseline.time_s and result.plans:
        other, best = result.baseline.time_s, result.plans[0].time_s
        lines.append(
            f"compared with {result.baseline.why} on {result.baseline.candidate.key}: "
            f"{units.duration(other)}, {100 * (best / other - 1):+.1f}%"
            + ("" if result.baseline.state == "solved" else "; does not fit")
        )
    return "\n".join(lines)


def _excess(parts: Mapping[str, float], least_s: float) -> list[str]:
    """Return what makes the fastest plan slower than the lower bound, the largest part first."""
    names = {
        "kernels_s": "the kernels that the bound counts, and waiting",
        "other_kernels_s": "kernels that it does not count, as their operands may be fused",
        "communication_s": "communication, which it takes to overlap",
    }
    shown = sorted((-seconds, names[key]) for key, seconds in parts.items() if seconds > 0)
    if not shown:
        return []
    total_s = sum(parts.values())
    causes = "; ".join(f"{units.share(-seconds, least_s)} {name}" for seconds, name in shown)
    return [f"fastest plan above the lower bound: {units.share(total_s, least_s)} ({causes})"]


def draw_search(result: Any, axes: Any) -> None:
    """Draw the simulated candidates by time and peak memory, and the Pareto front."""
    rows = [row for row in result.rows if row.time_s is not None and row.peak_bytes is not None]
    for state in sorted({row.state for row in rows}):
        chosen = [row for row in rows if row.state == state]
        axes.scatter(
            [(row.time_s or 0.0) * 1e3 for row in chosen],
            [(row.peak_bytes or 0) / 2**30 for row in chosen],
            label=state,
        )
    front = [((row.time_s or 0.0) * 1e3, (row.peak_bytes or 0) / 2**30) for row in result.front]
    axes.step([x for x, _ in front], [y for _, y in front], where="post", label="Pareto front")
    axes.set(xlabel="step (ms)", ylabel="peak memory per device (GiB)", title="candidates")
    axes.legend()

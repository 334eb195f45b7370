# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compose several strategies on a mesh: their plans are merged axis by axis."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tvm import ir

from tvm_distir.core.ir import check_module, is_private, relax_functions
from tvm_distir.core.passes import keep_rows
from tvm_distir.core.plan import (
    DEFAULT_MESH,
    MeshSpec,
    OpenLabels,
    Plan,
    PlanRule,
    faults_of_plan,
    labels_text,
    policies_of,
)
from tvm_distir.core.rewriting import canonical, fold_shapes, gc_paused, open_tuples
from tvm_distir.hardware import System
from tvm_distir.support import PlanError
from tvm_distir.transforms import FuseAttention

from .conflicts import agreeing, placed, resolve_conflicts, target_of
from .context_parallelism import has_ring, input_rules
from .forward_stages import forward_stages
from .head_groups import mesh_of
from .local_branches import LOCAL_LAYERS, on_branches
from .model_info import MeshLike, as_mesh_spec
from .pipelining import (
    AXIS,
    PIPELINE,
    check_forward,
    check_layers,
    is_forward,
    on_stages,
    schedule_of,
)
from .registry import BEFORE, BESIDE, OTHERS, SYSTEM, StrategySpec, checked, find_strategy, parse
from .training_parts import new_names


def make_plan(
    mod: ir.IRModule, text: str, axes: Mapping[str, int], system: System | str | None = None
) -> Plan:
    """Plan of a strategy text on a mesh of named axes, as a command line gives them.

    ``system``: whose times decide where a strategy asks for them.

    Raises
    ------
    PlanError, MeshError
        What :func:`parse` and :func:`compose` raise.
    """
    return compose(mod, MeshSpec(DEFAULT_MESH, axes), parse(text), system)


@gc_paused()
def compose(
    mod: ir.IRModule,
    mesh: MeshLike,
    specs: str | Sequence[StrategySpec | str],
    system: System | str | None = None,
) -> Plan:
    """Merge the plans of several strategies on a single mesh.

    Each strategy fills an axis and leaves the others open. Plans are merged by :func:`merge`. An
    axis of a parameter that no strategy filled is closed as replicated, so that inputs are sharded
    only as requested; where the plan is to be completed, so is an axis of a value that replaces a
    parameter. Axes of intermediate values and of call arguments stay open, for propagation to
    decide.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1.
    mesh : MeshSpec or mapping of str to int
    specs : str or sequence
        A text as for :func:`parse`, or specs.
    system : System or str, optional
        The system whose times decide where a strategy asks for them. None: bytes decide.

    Returns
    -------
    Plan

    Raises
    ------
    PlanError
        DIST0230, DIST0231, DIST0235 as :func:`parse`; DIST0232 two strategies contradict each
        other; what the strategies raise, of all strategies at once.
    """
    check_module(mod, "td.planning.compose")
    spec, mod = as_mesh_spec(mesh), open_tuples(fold_shapes(canonical(mod)))
    chosen_specs: list[StrategySpec] = []
    for item in [specs] if isinstance(specs, str) else specs:
        chosen_specs.extend(parse(item) if isinstance(item, str) else [checked(item)])
    if not chosen_specs:
        raise PlanError(
            "DIST0235", "no strategy is given", location="strategy", remedy='Try "data_parallel".'
        )
    if has_ring(chosen_specs):
        mod = FuseAttention()(mod)
    mod = keep_rows(mod, input_rules(mod, spec, chosen_specs))
    stages: Plan | None = None
    schedule_spec = schedule_of(chosen_specs, spec.axes)
    if schedule_spec is not None:
        options = next(o.options for o in chosen_specs if o.name == PIPELINE)
        axis, layers = str(options.get("axis", AXIS)), str(options.get("layers", ""))
        chosen_specs = [spec for spec in chosen_specs if spec.name != PIPELINE]
        if axis in spec.axes and is_forward(mod):
            check_forward(schedule_spec)
            rest = {name: size for name, size in spec.axes.items() if name != axis}
            inner = MeshSpec(DEFAULT_MESH, rest or {axis: 1})
            others = compose(mod, inner, chosen_specs, system) if chosen_specs else None
            return forward_stages(mod, spec, axis, layers, others)
        check_layers(layers)
        stages = on_stages(mod, spec, schedule_spec, axis)
        if not chosen_specs:
            return stages
        (spec,) = stages.meshes
    branch_spec = next((spec for spec in chosen_specs if spec.name == LOCAL_LAYERS), None)
    if branch_spec is not None and (stages is not None or len(chosen_specs) > 1):
        return _compose_branches(mod, spec, chosen_specs, branch_spec, stages, system)
    spec = mesh_of(mod, spec, chosen_specs)
    merged = merge(_plans(mod, spec, chosen_specs, System.resolve(system)))
    updated = new_names(mod) if merged.complete else ()
    private = {str(gv.name_hint) for gv, fn in relax_functions(mod) if is_private(fn)}
    rules = tuple(
        rule if rule.function in private else _close_rule(rule, updated) for rule in merged.rules
    )
    schedule = None if stages is None else stages.schedule
    return replace(merged, rules=rules, recompute=policies_of(mod), schedule=schedule)


def _compose_branches(
    mod: ir.IRModule,
    mesh: MeshSpec,
    specs: Sequence[StrategySpec],
    branch_spec: StrategySpec,
    stages: Plan | None,
    system: System | str | None,
) -> Plan:
    """Compose a strategy for separate meshes of branches with strategies for each of these."""
    if stages is not None or sum(spec.name == LOCAL_LAYERS for spec in specs) > 1:
        other = LOCAL_LAYERS if stages is None else PIPELINE
        problem = f'"{LOCAL_LAYERS}" and "{other}" both create meshes from an axis'
        raise PlanError("DIST0232", problem, location="strategy", remedy="Remove one of them.")
    info = find_strategy(LOCAL_LAYERS)
    branches = info.function(mod, mesh, **branch_spec.options)
    axis = str(branch_spec.options.get("axis", info.options["axis"].default))
    rest = {name: size for name, size in mesh.axes.items() if name != axis}
    others = [spec for spec in specs if spec is not branch_spec]
    if not rest:
        raise PlanError(
            "DIST0232", f'"{LOCAL_LAYERS}" leaves no mesh axis for "{others[0].name}"',
            location="strategy", remedy='Give the mesh another axis: "br=2,dp=2".',
        )  # fmt: skip
    return on_branches(mod, branches, compose(mod, MeshSpec(DEFAULT_MESH, rest), others, system))


def _plans(
    mod: ir.IRModule, mesh: MeshSpec, specs: Sequence[StrategySpec], system: System | None
) -> list[tuple[str, Plan]]:
    """Make the plans, in order; strategies that look at the others' plans come last.

    Where those that come after all others cut what another leaves replicated, they have their way.
    """
    plans: dict[int, tuple[str, Plan]] = {}
    faults = faults_of_plan("strategy")
    for looks in (None, BESIDE, BEFORE, OTHERS):
        for i, spec in enumerate(specs):
            info = find_strategy(spec.name)
            if info.looks_at != looks:
                continue
            if looks:
                faults.raise_all()  # what it looks at is not all there
            options = dict(spec.options)
            if looks and plans:
                options[looks] = merge(agreeing([plans[k] for k in sorted(plans)]))
            if system is not None and info.asks_system:
                options[SYSTEM] = system
            with faults.gathered():
                strategy_plan = info.function(mod, mesh, **options)
                if looks == OTHERS:
                    plans = {
                        k: (n, resolve_conflicts(plan, strategy_plan))
                        for k, (n, plan) in plans.items()
                    }
                plans[i] = spec.name, strategy_plan
    faults.raise_all()
    return agreeing([plans[i] for i in sorted(plans)])


def _close_rule(rule: PlanRule, updated: Collection[str]) -> PlanRule:
    """Return a rule without open axes, if it is of a parameter or of a replacement of it."""
    closes = rule.kind == "param" or (rule.kind == "value" and rule.name in updated)
    return placed(rule, rule.closed_labels) if closes else rule


def merge(plans: Sequence[tuple[str, Plan]]) -> Plan:
    """Merge plans of the same meshes, axis by axis.

    Rules with the same target (kind, name, function, index, argument, mesh) become a single rule,
    at the place of the first: on each axis the label that one of them fills; open where none does.
    It is stationary along the axes on which a stationary rule cuts it, and may move along the
    others; where none cuts, when one of them is. A plan's own repeated target counts as its last
    rule.

    Parameters
    ----------
    plans : sequence of (str, Plan)
        The plans, each with a name for messages.

    Raises
    ------
    PlanError
        DIST0232 when two plans fill the same axis of a target with different labels (reported once
        for each two plans and axis, of all of these), or have different meshes.
    """
    name, first = plans[0]
    rules: dict[tuple[object, ...], PlanRule] = {}
    owners: dict[tuple[object, ...], list[str]] = {}
    rules_of: dict[tuple[object, ...], list[PlanRule]] = {}
    conflicts: dict[tuple[int, str, str], PlanError] = {}
    for title, plan in plans:
        if plan.meshes != first.meshes:
            raise PlanError(
                "DIST0232", f'"{name}" and "{title}" are for different meshes',
                location="strategy", remedy="Use the same mesh for both.",
            )  # fmt: skip
        for target, rule in {target_of(rule): rule for rule in plan.rules}.items():
            axes = len(rule.placement)
            old = rules.setdefault(target, rule)
            filled = owners.setdefault(target, [""] * axes)
            before: OpenLabels = old.placement if target in rules_of else (None,) * axes
            labels = list(before)
            for axis, label in enumerate(rule.placement):
                if label is None:
                    continue
                if labels[axis] not in (None, label):
                    among = axis, filled[axis], title
                    if among not in conflicts:
                        conflicts[among] = _conflict(plan.mesh(rule.mesh), rule, old, *among)
                    continue
                labels[axis] = label
                filled[axis] = filled[axis] or title
            rules_of.setdefault(target, []).append(rule)
            stationary, moving = _stationary(rules_of[target])
            filling, segments = tuple(labels), old.segments or rule.segments
            have = old.placement, old.stationary, old.moving, old.segments
            if (filling, stationary, moving, segments) != have:
                rules[target] = replace(
                    old, placement=filling, stationary=stationary, moving=moving, segments=segments
                )
    faults = faults_of_plan("strategy")
    for conflict in conflicts.values():
        faults.add(conflict)
    faults.raise_all()
    ring = tuple(axis for _, plan in plans for axis in plan.ring)
    regather = tuple(axis for _, plan in plans for axis in plan.regather)
    complete = any(plan.complete for _, plan in plans)
    return Plan(
        first.meshes, tuple(rules.values()), ring=ring, regather=regather, complete=complete
    )


def _stationary(rules: Sequence[PlanRule]) -> tuple[bool, tuple[int, ...]]:
    """Return whether the values of rules are stationary, and the axes they still move along."""
    cuts = {
        axis: rule.stationary and axis not in rule.moving
        for rule in rules
        for axis, label in enumerate(rule.placement)
        if label is not None and label >= 0
    }
    if not cuts:
        return any(rule.stationary for rule in rules), ()
    if not any(cuts.values()):
        return False, ()
    return True, tuple(sorted(axis for axis, is_stationary in cuts.items() if not is_stationary))


def _conflict(
    mesh: MeshSpec, rule: PlanRule, old: PlanRule, axis: int, first: str, second: str
) -> PlanError:
    return PlanError(
        "DIST0232",
        f'on the mesh axis "{mesh.axis_names[axis]}" the strategy "{first}" requires '
        f'"{labels_text((old.placement[axis],))}", "{second}" requires '
        f'"{labels_text((rule.placement[axis],))}"',
        location=rule.title, remedy='Give each strategy a different axis with "axis=".',
    )  # fmt: skip

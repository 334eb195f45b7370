# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shard transformers by Megatron's tensor parallelism, optionally with sequence parallelism.

Shoeybi et al. 2019, "Megatron-LM", section 3: projections into a block are sharded by columns,
those out of it by rows, so that each block needs an all-reduce forward; the token table and the LM
head are sharded by the vocabulary. Korthikanti et al. 2022, "Reducing Activation Recomputation",
section 4.2.2: between the blocks the residual stream is sharded along the sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import R
from tvm_distir.core.ir.attributes import ROLE_ATTR, TRAINING_ATTR
from tvm_distir.core.ops import CACHE_HEADS
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule, data_positions, faults_of_plan
from tvm_distir.support import PlanError

from .cache_placement import cache_positions, created_cache_rules, heads_label, warn_of_full_caches
from .consumers import Consumers
from .fused_weights import FusedSegments, fused_segments
from .head_groups import heads_of, key_heads, tensor_axes, with_copies
from .model_info import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    check_divisible,
    entries,
    mesh_axis,
    names_of,
    parameter_rule,
    some_axes,
    tensor_parameters,
)
from .registry import plan_maker
from .replicated_warning import Projection, warn_of_whole
from .residual_stream import SEQ_DIM, sequence_rules
from .training_parts import boundary_positions
from .transformer_weights import GATE_UP, QUERY, ROW, KnownWeight, cut_dim, known_weight

FUSED_ROLES = ("fused", "fused_gate_up")
COLUMN_ROLES = ("query", "key_value", "gate_up", "head")

_WHY_WHOLE = {
    "fused": "query, key and value are fused, and the devices do not divide each of them",
    "fused_gate_up": "gate and up are fused, and the devices do not divide both",
    "key_value": "a single head, which all devices need",
}


@plan_maker
def megatron(mod: ir.IRModule, mesh: MeshLike, axis: str = "tp", sequence: bool = False) -> Plan:
    """Plan of Megatron's tensor parallelism for models such as GPT and Llama.

    Weights are known by name (:data:`.transformer_weights.ROLES`); which of their dims is cut
    follows from the ops that consume them. Column parallel, with their biases: query, key, value,
    gate, up, and the head. Row parallel: the projections out of attention and feed-forward; their
    biases are replicated. The token table is cut by the vocabulary, evenly or not. Of a projection
    to query, key and value at once, or to gate and up, each device has its part of every segment
    (``segments`` of the rule); in a training step it is replicated. The stacked weights of experts,
    (experts, in, out), are cut like those of other layers. All other parameters are replicated.
    A weight that an entry does not read has the placement that other entries give it. Weights are
    stationary. Where the axis has more devices than keys have heads, each of these lies on a group
    of devices (:mod:`.head_groups`): the plan's mesh has a second axis then, ``tp_copies``, along
    which all else is cut as well. Caches of keys and values are cut by heads, as the weights that
    fill them, and stationary.

    Parameters
    ----------
    mod : IRModule
        At level 1.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; the other axes remain open.
    sequence : bool
        Shard the residual stream between the blocks along the sequence, dim 1 of
        (batch, seq, hidden), inside private functions too: each all-reduce becomes a
        reduce-scatter and an all-gather. What is gathered in a training step each device
        keeps its part of, and the backward pass gathers again.

    Returns
    -------
    Plan

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0233 the model has no such weights, or uses them in an unknown way; DIST0234 heads
        or widths are not divisible by the axis, or the sequence is shorter than it.
    """
    spec = as_mesh_spec(mesh)
    mesh_axis(spec, axis, "megatron")
    consumers = Consumers(mod)
    heads = key_heads(mod, consumers)
    spec = with_copies(spec, axis, heads)
    one_head = heads == 1
    axes = tensor_axes(spec, axis)
    names = [spec.axis_names[number] for number in axes]
    rules: list[PlanRule] = []
    incomplete: list[PlanError] = []
    read: list[list[Projection]] = []
    agreed: dict[tuple[str, Any], PlanRule] = {}
    unread: list[tuple[int, Parameter]] = []
    divides_heads = False
    faults = faults_of_plan('strategy "megatron"')
    for name, fn, rule_name in entries(mod):
        data, arriving = data_positions(fn, name), boundary_positions(fn)
        parameters = tensor_parameters(name, fn, rule_name)
        weights = [
            known_weight(parameter, fn, consumers)
            for parameter in parameters
            if parameter.position not in data
        ]
        known = {w.parameter.position: w for w in weights if w is not None}
        try:
            _check_complete(list(known.values()), [p for p in parameters if p.position not in data])
        except PlanError as error:
            incomplete.append(error)
        labels: dict[int, int] = {}
        caches = cache_positions(mod, fn, parameters, consumers)
        full_caches: list[Parameter] = []
        for parameter in parameters:
            weight, label = known.get(parameter.position), R
            is_cache = parameter.position in caches
            if is_cache:
                heads_dim = heads_label(parameter, spec.axes[axis])
                label = R if heads_dim is None else heads_dim
                if heads_dim is None and spec.axes[axis] > 1:
                    full_caches.append(parameter)
            if sequence and parameter.position in arriving and parameter.ndim == 3:
                label = SEQ_DIM
            reads, segments = weight is None or bool(weight.uses), None
            if weight is not None and reads and not (one_head and weight.role == "key_value"):
                with faults.gathered():
                    segments = _segments(weight, fn, consumers)
                    label = _label(weight, spec, axis, consumers, segments)
            repeated = is_cache or (weight is not None and weight.role == "key_value")
            labels[parameter.position] = label
            cut = {n: R if repeated and n != axes[0] else label for n in axes}
            stays = is_cache or parameter.position not in data
            rule = parameter_rule(parameter, spec, {axes[0]: label}, stays)
            sizes = segments.sizes if segments is not None and label != R else ()
            sizes = sizes if len(sizes) > 1 else ()
            rule = replace(rule, placement=some_axes(spec, cut), segments=sizes)
            divides_heads |= bool(sizes) and weight is not None and weight.role == "fused"
            if reads:
                agreed.setdefault((parameter.name, parameter.shape), rule)
            else:
                unread.append((len(rules), parameter))
            rules.append(rule)
        warn_of_full_caches(full_caches, "megatron", axis)
        weights_read = [p for p in parameters if p.position not in data]
        read.append(list(_projections(weights_read, known, labels, fn, consumers)))
        if sequence:
            rows = [w for w in known.values() if w.role == "row" and not w.is_bias]
            with faults.gathered():
                rules.extend(sequence_rules(rows, consumers, rule_name, spec, names))
    if divides_heads:
        by_heads = some_axes(spec, dict.fromkeys(axes, CACHE_HEADS))
        rules.extend(created_cache_rules(mod, spec, by_heads))
    faults.raise_all()
    if len(incomplete) == len(entries(mod)):
        raise incomplete[0]  # a stage, or an entry, may have none of these weights, not all of them
    for number, parameter in unread:
        other = agreed.get((parameter.name, parameter.shape), rules[number])
        rules[number] = replace(rules[number], placement=other.placement, segments=other.segments)
    for projections in read:
        warn_of_whole(projections, "megatron", axis)
    regather = tuple(names) if sequence else ()
    return Plan((spec,), tuple(dict.fromkeys(rules)), regather=regather)


def _check_complete(known: Sequence[KnownWeight], all_weights: Sequence[Parameter]) -> None:
    """Refuse a model without both kinds of projections (DIST0233)."""
    roles = {w.role for w in known if not w.is_bias}
    into = {"query", "gate_up", *FUSED_ROLES} & roles
    if into and "row" in roles:
        return
    entry = all_weights[0].entry if all_weights else "main"
    missing = ("column" if not into else "row") + "-parallel weights"
    looked = [f"*{word}.weight" for word in ((*QUERY, *GATE_UP) if not into else ROW)]
    raise PlanError(
        "DIST0233",
        f"there is no {missing}: looked for {', '.join(looked)} among "
        f"{names_of(all_weights) or 'none'}",
        place=f"{entry} (megatron)",
        remedy="Rename the weights accordingly, or write the plan by hand.",
    )


def _projections(
    parameters: Sequence[Parameter],
    known: Mapping[int, KnownWeight],
    labels: Mapping[int, int],
    fn: relax.Function,
    consumers: Consumers,
) -> Iterator[Projection]:
    """Yield the weights of matrix products, and why they are not sharded, if so."""
    for parameter in parameters:
        weight = known.get(parameter.position)
        if parameter.ndim < 2 or (weight is not None and weight.is_bias):
            continue
        uses = (
            weight.uses
            if weight
            else consumers.uses(parameter.entry, fn.params[parameter.position])
        )
        if not any(use.kind == "matmul" for use in uses):
            continue
        why = ""
        if labels[parameter.position] == R:
            why = _WHY_WHOLE.get(weight.role if weight is not None else "", "its name is unknown")
        yield Projection(parameter, why)


def _segments(
    weight: KnownWeight, fn: relax.Function, consumers: Consumers
) -> FusedSegments | None:
    """Return the segments of a fused weight, None where it has to be replicated."""
    attrs: Any = fn.attrs or {}
    may_be_fused = weight.role in (*FUSED_ROLES, "gate_up")
    if not may_be_fused or TRAINING_ATTR in attrs or ROLE_ATTR in attrs:
        return None
    segments = fused_segments(weight, consumers)
    if weight.role == "gate_up" and segments is not None and len(segments.sizes) == 1:
        return None
    return segments


def _label(
    weight: KnownWeight,
    mesh: MeshSpec,
    axis: str,
    consumers: Consumers,
    segments: FusedSegments | None,
) -> int:
    """Return the label of a known weight along the axis, its sizes checked."""
    parameter, role = weight.parameter, weight.role
    numbers = tensor_axes(mesh, axis)
    count = mesh.axes[axis] if role == "key_value" else math.prod(mesh.shape[n] for n in numbers)
    if role in FUSED_ROLES or segments is not None:
        if role == "fused" and not weight.is_bias:
            _check_fused(weight, count, axis, consumers)
        if segments is None or not segments.divided_by(count):
            return R
        return parameter.ndim - 1 if weight.is_bias else cut_dim(weight)
    if weight.is_bias:
        if role not in COLUMN_ROLES or parameter.ndim < 1:
            return R
        if role != "head":
            _check_width(weight, parameter.ndim - 1, count, axis)
        return parameter.ndim - 1
    dim = cut_dim(weight)
    if role in ("embedding", "head"):
        return dim
    _check_heads(weight, count, axis, consumers)
    _check_width(weight, dim, count, axis)
    return dim


def _check_width(weight: KnownWeight, dim: int, count: int, axis: str) -> None:
    shape = weight.parameter.shape
    if shape is not None:
        place = f"{weight.parameter.place} (megatron)"
        check_divisible(shape[dim], count, f"dim {dim} of size", axis, place)


def _check_heads(weight: KnownWeight, count: int, axis: str, consumers: Consumers) -> None:
    if weight.role not in ("query", "key_value"):
        return
    problem = "the number of heads" if weight.role == "query" else "the number of key/value heads"
    for heads in heads_of(weight, consumers):
        _refuse_heads(weight, heads, count, axis, problem)


def _check_fused(weight: KnownWeight, count: int, axis: str, consumers: Consumers) -> None:
    shape = weight.parameter.shape
    for use in weight.uses:
        if use.kind == "matmul" and use.kept is not None and shape is not None:
            heads = consumers.split_into(use.function, use.result, int(shape[use.kept]) // 3)
            if heads is not None:
                _refuse_heads(weight, heads, count, axis, "the number of heads")


def _refuse_heads(weight: KnownWeight, heads: int, count: int, axis: str, problem: str) -> None:
    fitting = [n for n in range(1, heads + 1) if heads % n == 0]
    check_divisible(
        heads,
        count,
        problem,
        axis,
        f"{weight.parameter.place} (megatron)",
        f'Give "{axis}" a size that divides {heads}: {", ".join(map(str, fitting))}.',
    )

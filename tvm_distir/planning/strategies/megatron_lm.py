# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shard transformers by Megatron's tensor parallelism, optionally with sequence parallelism.

Shoeybi et al. 2019, "Megatron-LM", section 3: projections into a block are sharded by columns,
those out of it by rows, so that each block needs an all-reduce forward; the token table and the LM
head are sharded by the vocabulary. Korthikanti et al. 2022, "Reducing Activation Recomputation",
section 4.2.2: between the blocks the residual stream is sharded along the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import R
from tvm_distir.core.ops import CACHE_HEADS
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule, data_positions, faults_of_plan
from tvm_distir.support import PlanError

from .cache_placement import cache_positions, created_cache_rules, heads_label, warn_of_full_caches
from .consumers import Consumers
from .head_groups import key_heads, tensor_axes, with_copies
from .megatron_labels import FUSED_WEIGHTS, label_of, segments_of
from .model_info import (
    MeshLike,
    Parameter,
    as_mesh_spec,
    entries,
    mesh_axis,
    names_of,
    parameter_rule,
    some_axes,
    tensor_parameters,
)
from .registry import plan_maker
from .replicated_warning import Projection, warn_of_replicated
from .residual_stream import SEQ_DIM, sequence_rules
from .training_parts import boundary_positions
from .transformer_weights import GATE_UP, QUERY, ROW, KnownWeight, is_adapter, known_weight

_WHY_REPLICATED = {
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
    rules = _Rules(mod, spec, axis, consumers, heads == 1, sequence)
    return rules.plan([rules.entry(*entry) for entry in entries(mod)])


class _Rules:
    """Rules of the entries of a module."""

    def __init__(
        self, mod: ir.IRModule, mesh: MeshSpec, axis: str, consumers: Consumers, one_head: bool,
        sequence: bool,
    ) -> None:  # fmt: skip
        self.mod, self.mesh, self.axis, self.consumers = mod, mesh, axis, consumers
        self.one_head, self.sequence = one_head, sequence
        self.axes = tensor_axes(mesh, axis)
        self.names = [mesh.axis_names[number] for number in self.axes]
        self.rules: list[PlanRule] = []
        self.incomplete: list[PlanError] = []
        self.agreed: dict[tuple[str, Any], PlanRule] = {}
        self.unread: list[tuple[int, Parameter]] = []
        self.divides_heads = False
        self.faults = faults_of_plan('strategy "megatron"')

    def entry(self, name: str, fn: relax.Function, rule_name: str | None) -> list[Projection]:
        """Add the rules of an entry; return the weights of its products."""
        data, arriving = data_positions(fn, name), boundary_positions(fn)
        parameters = tensor_parameters(name, fn, rule_name)
        others = [p for p in parameters if p.position not in data]
        weights = (known_weight(parameter, fn, self.consumers) for parameter in others)
        known = {w.parameter.position: w for w in weights if w is not None}
        try:
            _check_complete(list(known.values()), others)
        except PlanError as error:
            self.incomplete.append(error)
        labels: dict[int, int] = {}
        caches = cache_positions(self.mod, fn, parameters, self.consumers)
        full_caches: list[Parameter] = []
        for parameter in parameters:
            label, is_cache = R, parameter.position in caches
            if is_cache:
                heads_dim = heads_label(parameter, self.mesh.axes[self.axis])
                label = R if heads_dim is None else heads_dim
                if heads_dim is None and self.mesh.axes[self.axis] > 1:
                    full_caches.append(parameter)
            if self.sequence and parameter.position in arriving and parameter.ndim == 3:
                label = SEQ_DIM
            stays = is_cache or parameter.position not in data
            weight = known.get(parameter.position)
            label = self._add(parameter, weight, fn, label, is_cache, stays)
            labels[parameter.position] = label
        warn_of_full_caches(full_caches, "megatron", self.axis)
        if self.sequence:
            rows = [w for w in known.values() if w.projection == "row" and not w.is_bias]
            with self.faults.gathered():
                self.rules += sequence_rules(rows, self.consumers, rule_name, self.mesh, self.names)
        return list(_projections(others, known, labels, fn, self.consumers))

    def _add(
        self, parameter: Parameter, weight: KnownWeight | None, fn: relax.Function, label: int,
        is_cache: bool, stays: bool,
    ) -> int:  # fmt: skip
        """Add the rule of a parameter; return its label along the axis."""
        reads, segments = weight is None or bool(weight.uses), None
        if (
            weight is not None
            and reads
            and not (self.one_head and weight.projection == "key_value")
        ):
            with self.faults.gathered():
                segments = segments_of(weight, fn, self.consumers)
                label = label_of(weight, self.mesh, self.axis, self.consumers, segments)
        repeated = is_cache or (weight is not None and weight.projection == "key_value")
        cut = {n: R if repeated and n != self.axes[0] else label for n in self.axes}
        sizes = segments.sizes if segments is not None and label != R else ()
        sizes = sizes if len(sizes) > 1 else ()
        rule = replace(parameter_rule(parameter, self.mesh, cut, stays), segments=sizes)
        self.divides_heads |= bool(sizes) and weight is not None and weight.projection == "fused"
        if reads:
            self.agreed.setdefault((parameter.name, parameter.shape), rule)
        else:
            self.unread.append((len(self.rules), parameter))
        self.rules.append(rule)
        return label

    def plan(self, read: Sequence[Sequence[Projection]]) -> Plan:
        """Return the plan of all entries."""
        rules = self.rules
        if self.divides_heads:
            by_heads = some_axes(self.mesh, dict.fromkeys(self.axes, CACHE_HEADS))
            rules.extend(created_cache_rules(self.mod, self.mesh, by_heads))
        self.faults.raise_all()
        if len(self.incomplete) == len(read):
            raise self.incomplete[0]  # a stage, or an entry, may have none of them, not all
        for number, parameter in self.unread:
            other = self.agreed.get((parameter.name, parameter.shape), rules[number])
            placement, segments = other.placement, other.segments
            rules[number] = replace(rules[number], placement=placement, segments=segments)
        for projections in read:
            warn_of_replicated(projections, "megatron", self.axis)
        regather = tuple(self.names) if self.sequence else ()
        return Plan((self.mesh,), tuple(dict.fromkeys(rules)), regather=regather)


def _check_complete(known: Sequence[KnownWeight], all_weights: Sequence[Parameter]) -> None:
    """Refuse a model without both kinds of projections (DIST0233)."""
    roles = {w.projection for w in known if not w.is_bias}
    into = {"query", "gate_up", *FUSED_WEIGHTS} & roles
    if into and "row" in roles:
        return
    entry = all_weights[0].entry if all_weights else "main"
    missing = ("column" if not into else "row") + "-parallel weights"
    looked = [f"*{word}.weight" for word in ((*QUERY, *GATE_UP) if not into else ROW)]
    raise PlanError(
        "DIST0233",
        f"there is no {missing}: looked for {', '.join(looked)} among "
        f"{names_of(all_weights) or 'none'}",
        location=f"{entry} (megatron)",
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
        is_bias = weight is not None and weight.is_bias
        if parameter.ndim < 2 or is_bias or is_adapter(parameter.name):
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
            why = _WHY_REPLICATED.get(
                weight.projection if weight is not None else "", "its name is unknown"
            )
        yield Projection(parameter, why)

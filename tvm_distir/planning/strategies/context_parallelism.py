# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Context parallel: shard the sequence over an axis through the whole model, with attention.

Attention is where two dims of the sequence meet, queries and keys; it is recognized by the sharding
rules, not by names. Around it each device works on its part of the sequence. Inside it, by
all-to-all, on its part of the heads (Jacobs et al. 2023, "DeepSpeed Ulysses"), or on its part of
the queries against all keys, which are gathered, or come by around a ring (Liu et al. 2023, "Ring
Attention").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tvm import ir

from tvm_distir.core.ir import R
from tvm_distir.core.ir.operators import ATTENTION_OP, POSITIONS_DIM
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule, data_positions, faults_of_plan
from tvm_distir.core.propagation import TiedDims, tied_dims
from tvm_distir.support import Faults, PlanError
from tvm_distir.transforms import FuseAttention

from .cache_placement import cache_positions, check_positions, has_caches
from .model_info import (
    MeshLike,
    as_mesh_spec,
    entries,
    mesh_axis,
    parameter_rule,
    tensor_parameters,
)
from .registry import StrategySpec, plan_maker
from .sequence_dims import SEQUENCE_DIM, Product, cut_inputs, products
from .sequence_placement import PlacementRules, shard_product, shard_rows

RING = "ring"


@plan_maker
def context_parallel(
    mod: ir.IRModule,
    mesh: MeshLike,
    axis: str = "cp",
    form: Literal["all_to_all", "ring", "gather"] = "all_to_all",
    dim: int = SEQUENCE_DIM,
) -> Plan:
    """Plan that shards the sequence of all activations over a mesh axis, in attention too.

    The sequence is ``dim`` of the first data input that has such a dim, and of those of its size.
    Weights are replicated and stationary. In a serving step with caches, each device stores some
    positions of every page instead, and the results of attention are joined.

    Parameters
    ----------
    mod : IRModule
        Any model with a sequence, at level 1, or a training step.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; the other axes remain open.
    form : str
        How attention is computed: "all_to_all" exchanges the sequence for heads and back with
        four all-to-alls per layer; "ring" passes keys and values from device to device, for a
        module whose attention ``FuseAttention`` has made an op, as the plan asks for; "gather"
        gathers all keys and values on each device.
    dim : int
        The sequence dim of the data inputs.

    Returns
    -------
    Plan
        A rule per parameter; rules for the activations that products and look-ups give, and for
        the arguments of functions.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0233 no data input has the dim; DIST0234 heads are not
        divisible by the axis (all_to_all), or the sequence is shorter than the axis.
    PropagationError
        DIST0401 an op without a rule.
    """
    spec = as_mesh_spec(mesh)
    if has_caches(mod):
        return _cached_plan(mod, spec, axis)
    if form == RING:
        mod = FuseAttention()(mod)
    seeds, rules = cut_inputs(mod, spec, axis, dim, "context_parallel")
    values = PlacementRules(mod, spec, axis)
    faults = faults_of_plan("main (context_parallel)")
    regather = False
    for tied in tied_dims(mod, seeds, spec.axes[axis]):
        regather |= any(n.rule is not None and n.rule.op == ATTENTION_OP for n in tied.graph.nodes)
        values.arguments(tied)
        if form == "all_to_all":
            _shard_heads(tied, values, spec.axes[axis], axis, faults)
        else:
            shard_rows(tied, values, spec.axes[axis])
    faults.raise_all()
    ring = (axis,) if form == RING else ()
    # Its backward pass reads the keys that its forward pass has gathered.
    return Plan((spec,), (*rules, *values.rules), ring=ring, regather=ring if regather else ())


def _cached_plan(mod: ir.IRModule, mesh: MeshSpec, axis: str) -> Plan:
    """Return the plan of a serving step: each device stores some positions of every page."""
    number = mesh_axis(mesh, axis, "context_parallel")
    rules, faults = [], faults_of_plan('strategy "context_parallel"')
    for name, fn, rule_name in entries(mod):
        parameters, data = tensor_parameters(name, fn, rule_name), data_positions(fn, name)
        caches = cache_positions(mod, fn, parameters)
        for parameter in parameters:
            is_cache = parameter.position in caches
            if is_cache:
                with faults.gathered():
                    check_positions(parameter, mesh, axis)
            label = POSITIONS_DIM if is_cache else R
            stays = is_cache or parameter.position not in data
            rules.append(parameter_rule(parameter, mesh, {number: label}, stays))
    faults.raise_all()
    return Plan((mesh,), tuple(rules))


def has_ring(specs: Sequence[StrategySpec]) -> bool:
    """Return whether a strategy sends keys around a ring, so that attention is to be an op."""
    return any(s.name == "context_parallel" and s.options.get("form") == RING for s in specs)


def input_rules(mod: ir.IRModule, mesh: MeshSpec, specs: Sequence[StrategySpec]) -> list[PlanRule]:
    """Return rules that shard the sequence of data inputs, as the strategies of a plan will."""
    rules: list[PlanRule] = []
    for spec in specs:
        axis, dim = spec.options.get("axis", "cp"), spec.options.get("dim", SEQUENCE_DIM)
        if spec.name != "context_parallel" or axis not in mesh.axes or has_caches(mod):
            continue
        labels = {mesh.axis_number(axis): dim}
        for name, fn, rule_name in entries(mod):
            data = data_positions(fn, name)
            inputs = [p for p in tensor_parameters(name, fn, rule_name) if p.position in data]
            deep = [p for p in inputs if p.shape is not None and len(p.shape) > dim]
            rules += [parameter_rule(p, mesh, labels, stationary=False) for p in deep]
    return rules


def _shard_heads(
    tied: TiedDims, values: PlacementRules, count: int, axis: str, faults: Faults
) -> None:
    """Shard results of products along the sequence, in attention along the heads."""
    g = tied.graph
    for product in products(tied):
        node = g.nodes[product.node]
        if not tied.dims(node.results[0]):
            shard_product(values, product, count)
        elif product.meeting:
            heads = product.shared_dims(count)
            if heads is None:
                faults.add(_no_heads(product, count, axis))
                continue
            values.put(tied, product.node, heads[-1])
            for v, dim in zip(node.operands, heads[:-1], strict=False):
                if len(tied.dims(v)) == 1:
                    values.put(tied, g.producer[v][0], dim)
        else:
            for value in (*node.operands, *node.results):
                values.rows(tied, value)


def _no_heads(product: Product, count: int, axis: str) -> PlanError:
    words = "x".join(map(str, product.shape))
    return PlanError(
        "DIST0234",
        f"attention of the shape {words} has no heads that the mesh axis "
        f'"{axis}" ({count}) divides',
        location=f"{product.location} (context_parallel)",
        remedy='Use fewer devices along it, or "context_parallel:form=gather".',
    )

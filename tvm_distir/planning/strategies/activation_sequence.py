# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shard activations that would be replicated along the sequence, for any model.

Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.2.2, without names: the
values that other strategies leave replicated along the axis are determined by propagating their
plan, and the sequence dims by the sharding rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import ir

from tvm_distir.core.ir import R, labels_of, mesh_key, relax_functions
from tvm_distir.core.ir.operators import call_axes, dist_op_name
from tvm_distir.core.passes import AnnotateSharding, PropagateSharding
from tvm_distir.core.plan import MeshSpec, Plan
from tvm_distir.core.propagation import TiedDims, tied_dims
from tvm_distir.core.rewriting import all_bindings, is_redistribute, variables
from tvm_distir.support import PlanError

from .model_info import MeshLike, as_mesh_spec, entries
from .registry import plan_maker
from .sequence_dims import SEQUENCE_DIM, cut_inputs
from .sequence_placement import EVERYTHING, Left, PlacementRules, shard_rows


@plan_maker
def sequence(
    mod: ir.IRModule,
    mesh: MeshLike,
    axis: str = "tp",
    dim: int = SEQUENCE_DIM,
    *,
    others: Plan | None = None,
) -> Plan:
    """Plan that shards along the sequence what other strategies replicate over a mesh axis.

    Activations between ops that work on each position by itself are cut: norms, residual sums,
    dropout, element-wise ops. Ops that another strategy cuts otherwise get them gathered, and
    give their sums scattered. Alone, with nothing else on the axis, it cuts the activations of the
    whole model and gathers the keys and values of attention. Of what a training step gathers each
    device keeps its part, and the backward pass gathers again.

    Parameters
    ----------
    mod : IRModule
        Any model whose data inputs have a sequence or rows, at level 1, or a training step.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; ``megatron`` or ``tensor_parallel`` may shard weights over it.
    dim : int
        The sequence dim of the data inputs.
    others : Plan, optional
        What the other strategies want on this mesh.

    Returns
    -------
    Plan
        Rules for activations and arguments of functions; alone, one per parameter too.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0233 no data input has the dim, or no activation that is whole has it; DIST0234 the
        sequence is shorter than the axis.
    PropagationError
        DIST0401 an op without a rule; what propagating the other strategies' plan raises.
    """
    spec = as_mesh_spec(mesh)
    seeds, rules = cut_inputs(mod, spec, axis, dim, "sequence")
    full = (
        EVERYTHING
        if others is None
        else _unsharded_values(mod, others, spec, spec.axis_number(axis))
    )
    values = PlacementRules(mod, spec, axis, full)
    for tied in tied_dims(mod, seeds, spec.axes[axis]):
        values.arguments(tied)
        _apply(tied, values)
        shard_rows(tied, values, spec.axes[axis])
    if not values.rules:
        raise PlanError(
            "DIST0233",
            f"no activation that is replicated along {axis} has dim {dim} of the data inputs as "
            "a dim",
            location=f"{entries(mod)[0][0]} (sequence)",
            remedy='Set the sequence dim with "sequence:dim=".',
        )
    placed = (*(rules if others is None else ()), *values.rules)
    return Plan((spec,), placed, regather=(axis,))


def _apply(tied: TiedDims, values: PlacementRules) -> None:
    """Cut the results of a function's ops along the sequence."""
    g = tied.graph
    for node in g.nodes:
        ty = g.values[node.results[0]].ty if len(node.results) == 1 else None
        if node.rule is not None and ty is not None and "float" in str(ty.dtype):
            values.rows(tied, node.results[0])


def _unsharded_values(mod: ir.IRModule, plan: Plan, mesh: MeshSpec, number: int) -> Left:
    """Return the values replicated along an axis, without partial sums, by a plan alone."""
    closed = [
        replace(rule, placement=rule.closed_labels) if rule.kind == "param" else rule
        for rule in plan.rules
    ]
    placed = PropagateSharding()(AnnotateSharding(replace(plan, rules=tuple(closed)))(mod))
    key = mesh_key(mesh.device_mesh())
    result: dict[tuple[str, str], bool] = {}
    for gv, fn in relax_functions(placed):
        name = str(gv.name_hint)
        terms: set[Any] = set()
        for binding in all_bindings(fn.body):
            var, value = binding.var, binding.value
            if dist_op_name(value) == "partial" and number in call_axes(value):
                terms.add(var)
                for operand in variables(value):  # none where the term is a constant
                    terms.add(operand)
                    result[name, str(operand.name)] = False
            elif not is_redistribute(value) and terms.intersection(variables(value)):
                terms.add(var)
            placement = getattr(var.ty, "placement", None)
            if placement is not None and mesh_key(var.ty.device_mesh) == key:
                is_replicated = labels_of(placement)[number] == R
                result[name, str(var.name)] = is_replicated and var not in terms
    return result

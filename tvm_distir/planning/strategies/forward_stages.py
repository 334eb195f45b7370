# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Divide the layers of a forward pass, or of a serving step, over pipeline stages.

Each stage has a mesh of its own, with the weights and the caches of its layers. An op runs on the
mesh of its weights, so that activations are sent from stage to stage, and the last stage has the
logits.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import ir

from tvm_distir.core.ir import R, mesh_devices, static_shape, tensor_type
from tvm_distir.core.plan import MeshSpec, OpenLabels, Plan, PlanRule, data_positions
from tvm_distir.support import PlanError

from .model_info import Parameter, entries, mesh_on, same_size, tensor_parameters
from .stage_division import StageDivision, unfit

STAGE = "stage"
"""Begins the names of the meshes of stages."""


def forward_stages(
    mod: ir.IRModule, mesh: MeshSpec, axis: str, layers: str = "", others: Plan | None = None
) -> Plan:
    """Return the plan of a forward pass whose layers are divided over the stages along an axis.

    Parameters
    ----------
    mod : IRModule
        At level 1, with a single entry.
    mesh : MeshSpec
        Of the whole cluster.
    axis : str
        The mesh axis of the stages.
    layers : str
        Numbers of layers of each stage, as ``17/15``; empty: evenly, see
        :func:`.stage_division.even_layers`.
    others : Plan, optional
        The plan of other strategies on the mesh of a stage.

    Returns
    -------
    Plan
        A mesh for each stage. Parameters are on the mesh of the stage that reads them first.

    Raises
    ------
    PlanError
        DIST0232 where another strategy places values inside of layers; DIST0233 where the module
        cannot be divided so.
    """
    named = entries(mod)
    if len(named) > 1:
        names = ", ".join(name for name, _, _ in named)
        raise unfit(f"the module has several entries: {names}", "Choose one with --entry.")
    name, fn, rule_name = named[0]
    stages = _stage_meshes(mesh, axis, others)
    division = StageDivision(mod, fn, len(stages), layers)
    parameters, data = tensor_parameters(name, fn, rule_name), data_positions(fn, name)
    plan = others or Plan(tuple(stages))
    rules = _Rules(division, stages, parameters, rule_name, data, plan.rules)
    placed = (*rules.parameters(), *rules.calls(), *rules.values())
    return replace(plan, meshes=tuple(stages), rules=placed)


def _stage_meshes(mesh: MeshSpec, axis: str, others: Plan | None) -> list[MeshSpec]:
    """Return the meshes of the stages, whose axes are those of the plan of other strategies."""
    ids = np.moveaxis(mesh_devices(mesh.device_mesh()), mesh.axis_number(axis), 0)
    axes: Mapping[str, int] = {axis: 1} if others is None else others.meshes[0].axes
    return [mesh_on(row.ravel().tolist(), f"{STAGE}{k}", axes) for k, row in enumerate(ids)]


@dataclass(eq=False)
class _Rules:
    """Writer of the rules of a plan on the meshes of stages, beside those of other strategies."""

    division: StageDivision
    stages: Sequence[MeshSpec]
    all_parameters: Sequence[Parameter]
    rule_name: str | None
    data: Sequence[int]
    others: Sequence[PlanRule]

    def __post_init__(self) -> None:
        self._open: OpenLabels = (None,) * len(self.stages[0].axes)
        self._placed = {rule.name: rule for rule in self.others if rule.kind == "param"}

    def parameters(self) -> list[PlanRule]:
        """Return the rules of the parameters."""
        rules = []
        for parameter in self.all_parameters:
            var = self.division.fn.params[parameter.position]
            stage = self.stages[self.division.first_reader(var)].name
            title = glob.escape(parameter.name)
            replicated = (R,) * len(self._open)
            stationary = parameter.position not in self.data
            rule = PlanRule("param", title, replicated, stage, stationary, parameter.function)
            other = self._placed.get(title)
            rules.append(rule if other is None else replace(other, mesh=stage))
        return rules

    def _activation(self) -> Callable[[Any], OpenLabels]:
        """Return the function from the type of an activation to its labels, as of the first data.

        It is sharded as its dims of the same place and size are.
        """
        first = next((p for p in self.all_parameters if p.position in self.data), None)
        rule = None if first is None else self._placed.get(glob.escape(first.name))
        if first is None or rule is None or first.shape is None:
            return lambda ty: self._open
        sizes, placement = first.shape, rule.placement

        def labels(ty: Any) -> OpenLabels:
            shape = static_shape(ty) or ()
            same = {d for d, (a, b) in enumerate(zip(shape, sizes)) if same_size(a, b)}
            return tuple(label if label in same else None for label in placement)

        return labels

    def calls(self) -> list[PlanRule]:
        """Return rules that put the arguments of the layers of a stage on its mesh."""
        like = {(r.name, r.index, r.arg): r.placement for r in self.others if r.kind == "call"}
        params = {var: self.division.first_reader(var) for var in self.division.fn.params}
        activation = self._activation()
        rules = []
        for at, callee, number in self.division.calls:
            stage = self.division.stage_of[at]
            for i, arg in enumerate(self.division.bindings[at].value.args):
                labels = like.get((callee, number, i), like.get((callee, None, i)))
                here = stage == 0 or params.get(arg) == stage if isinstance(arg, ir.Var) else True
                if tensor_type(arg.ty) is None or (here and labels is None):
                    continue
                if labels is None and arg in self.division.activations:
                    labels = activation(arg.ty)
                rules.append(
                    PlanRule(
                        "call", callee, labels or self._open, self.stages[stage].name,
                        function=self.rule_name, index=number, arg=i,
                    )
                )  # fmt: skip
        return rules

    def values(self) -> list[PlanRule]:
        """Return the rules of values of other strategies, on the meshes of their stages."""
        stage_of = {
            glob.escape(str(b.var.name)): stage
            for b, stage in zip(self.division.bindings, self.division.stage_of, strict=True)
        }
        rules = []
        for rule in self.others:
            if rule.kind != "value":
                continue
            if rule.function != self.rule_name or rule.name not in stage_of:
                raise PlanError(
                    "DIST0232",
                    f"another strategy places {rule.title} inside of a layer, which several "
                    "stages have",
                    location="strategy",
                    remedy="Use strategies that place weights and inputs only.",
                )  # fmt: skip
            rules.append(replace(rule, mesh=self.stages[stage_of[rule.name]].name))
        return rules

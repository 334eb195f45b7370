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
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import ir

from tvm_distir.core.ir import R, mesh_devices, static_shape, tensor_type
from tvm_distir.core.plan import MeshSpec, OpenLabels, Plan, PlanRule, data_positions
from tvm_distir.support import PlanError

from .model_info import Parameter, entries, same_size, tensor_parameters
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
    rules = _Rules(division, stages, tensor_parameters(name, fn, rule_name), rule_name)
    data = data_positions(fn, name)
    placed = rules.parameters(data, others) + rules.calls(data, others)
    if others is None:
        return Plan(tuple(stages), tuple(placed))
    return replace(others, meshes=tuple(stages), rules=(*placed, *rules.values(others)))


def _stage_meshes(mesh: MeshSpec, axis: str, others: Plan | None) -> list[MeshSpec]:
    """Return the meshes of the stages, whose axes are those of the plan of other strategies."""
    ids = np.moveaxis(mesh_devices(mesh.device_mesh()), mesh.axis_number(axis), 0)
    axes: Mapping[str, int] = {axis: 1} if others is None else others.meshes[0].axes
    result = []
    for number, row in enumerate(ids):
        devices = tuple(int(i) for i in row.ravel())
        in_order = devices == tuple(range(devices[0], devices[0] + len(devices)))
        where: Any = {"start": devices[0]} if in_order else {"device_ids": devices}
        result.append(MeshSpec(f"{STAGE}{number}", axes, **where))
    return result


class _Rules:
    """Writer of the rules of a plan on the meshes of stages."""

    def __init__(
        self,
        division: StageDivision,
        stages: Sequence[MeshSpec],
        parameters: Sequence[Parameter],
        rule_name: str | None,
    ) -> None:
        self.division, self.stages, self._rule_name = division, stages, rule_name
        self._parameters = parameters
        self._open: OpenLabels = (None,) * len(stages[0].axes)

    def parameters(self, data: Sequence[int], others: Plan | None) -> list[PlanRule]:
        """Return the rules of the parameters."""
        like = {r.name: r for r in (others.rules if others else ()) if r.kind == "param"}
        rules = []
        for parameter in self._parameters:
            var = self.division.fn.params[parameter.position]
            stage = self.stages[self.division.first_reader(var)].name
            title = glob.escape(parameter.name)
            replicated = (R,) * len(self._open)
            stationary = parameter.position not in data
            rule = PlanRule("param", title, replicated, stage, stationary, parameter.function)
            other = like.get(title)
            rules.append(rule if other is None else replace(other, mesh=stage))
        return rules

    def _activation(self, data: Sequence[int], others: Plan | None) -> Callable[[Any], OpenLabels]:
        """Return the function from the type of an activation to its labels, as of the first data.

        It is sharded as its dims of the same place and size are.
        """
        rules = {r.name: r for r in (others.rules if others else ()) if r.kind == "param"}
        first = next((p for p in self._parameters if p.position in data), None)
        rule = None if first is None else rules.get(glob.escape(first.name))
        if first is None or rule is None or first.shape is None:
            return lambda ty: self._open
        sizes, placement = first.shape, rule.placement

        def labels(ty: Any) -> OpenLabels:
            shape = static_shape(ty) or ()
            same = {d for d, (a, b) in enumerate(zip(shape, sizes)) if same_size(a, b)}
            return tuple(label if label in same else None for label in placement)

        return labels

    def calls(self, data: Sequence[int], others: Plan | None) -> list[PlanRule]:
        """Return rules that put the arguments of the layers of a stage on its mesh."""
        like = {
            (r.name, r.index, r.arg): r.placement
            for r in (others.rules if others else ())
            if r.kind == "call"
        }
        params = {var: self.division.first_reader(var) for var in self.division.fn.params}
        activation = self._activation(data, others)
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
                        function=self._rule_name, index=number, arg=i,
                    )
                )  # fmt: skip
        return rules

    def values(self, others: Plan) -> list[PlanRule]:
        """Return the rules of values of other strategies, on the meshes of their stages."""
        stage_of = {
            glob.escape(str(b.var.name)): stage
            for b, stage in zip(self.division.bindings, self.division.stage_of, strict=True)
        }
        rules = []
        for rule in others.rules:
            if rule.kind != "value":
                continue
            if rule.function != self._rule_name or rule.name not in stage_of:
                raise PlanError(
                    "DIST0232",
                    f"another strategy places {rule.title} inside of a layer, which several "
                    "stages have",
                    location="strategy",
                    remedy="Use strategies that place weights and inputs only.",
                )  # fmt: skip
            rules.append(replace(rule, mesh=self.stages[stage_of[rule.name]].name))
        return rules

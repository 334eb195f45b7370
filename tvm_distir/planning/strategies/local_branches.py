# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run independent branches of a model on different devices (local layers)."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir import R, handle, mesh_devices, tensor_type
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule, data_positions
from tvm_distir.core.propagation import Axis, Graph, PlacedModule
from tvm_distir.core.rewriting import callee_of, loss_position, op_name, variables
from tvm_distir.support import PlanError

from .gathered_weights import VIEWS
from .model_info import (
    MeshLike,
    as_mesh_spec,
    entries,
    flat_positions,
    mesh_axis,
    tensor_parameters,
)
from .parallel_branches import Branches, ParallelBranch, balanced, branches_of, members
from .registry import plan_maker
from .training_parts import noted_names

LOCAL_LAYERS = "local_layers"
"""Name of the strategy: it takes an axis away, and others work on the mesh of each branch."""

LEAST_PERCENT = 5


@plan_maker
def local_layers(
    mod: ir.IRModule, mesh: MeshLike, axis: str = "br", least: int = LEAST_PERCENT
) -> Plan:
    """Plan that places independent branches of a model on different devices.

    Each place along the axis becomes a mesh of its own, of the other axes. Where several branches
    meet, in an op or in the results, each goes to where least is to do, with its weights, and
    sends what it gives; all that is no branch is on the first mesh.
    Towers with inputs of their own run apart from the start; an op that takes what the branches
    share runs on the first mesh, a call of a function does not.

    Parameters
    ----------
    mod : IRModule
        At level 1, or a training step.
    mesh : MeshSpec or mapping of str to int
    axis : str
        The mesh axis; other strategies use the other axes.
    least : int
        Minimum percentage of the model's FLOPs in a branch.

    Returns
    -------
    Plan
        On several meshes; other strategies place the parameters along the axes of each.

    Raises
    ------
    MeshError
        DIST0206 when the mesh has no such axis.
    PlanError
        DIST0233 when no two branches have that much work.
    PropagationError
        DIST0401 an op without a rule.
    """
    spec = as_mesh_spec(mesh)
    number = mesh_axis(spec, axis, "local_layers")
    submeshes = _submeshes(spec, number)
    module = PlacedModule.of(mod, [Axis(0, number, spec.shape[number], axis)])
    rules: list[PlanRule] = []
    for name, fn, rule_name in entries(mod):
        g = module.graphs[module.entries[name]]
        loss = loss_position(fn)
        results = range(len(g.rets)) if loss is None else [loss]
        branches = branches_of(module, g, results, least)
        if not branches.groups:
            problem = f"no two independent branches have {least} percent of the work each"
            remedy = 'Use another strategy, or lower "local_layers:least=".'
            raise PlanError("DIST0233", problem, location=f"{name} (local_layers)", remedy=remedy)
        rules += _Placing(g, branches, submeshes, rule_name).rules(name, fn)
    return Plan(tuple(submeshes), tuple(rules))


def on_branches(mod: ir.IRModule, branches: Plan, others: Plan) -> Plan:
    """Place tensors of branches as other strategies do on a single mesh of the same axes.

    Gradients, and products with weights, are on the meshes of the weights.

    Parameters
    ----------
    mod : IRModule
    branches : Plan
        The plan of :func:`local_layers`.
    others : Plan
        The plan of strategies for the axes of any of its meshes.

    Raises
    ------
    PlanError
        DIST0232 where these place what the first does not name: on which mesh that is follows by
        propagation only.
    """
    other_rules = {(rule.kind, rule.function, rule.name): rule for rule in others.rules}
    rules = []
    for rule in branches.rules:
        like = other_rules.pop((rule.kind, rule.function, rule.name), None)
        if like is not None:
            rule = replace(
                rule, placement=like.placement, stationary=like.stationary, moving=like.moving
            )
        rules.append(rule)
    homes = {rule.name: rule.mesh for rule in rules if rule.kind == "param"}
    weights = {
        glob.escape(gradient): homes.get(glob.escape(weight))
        for _, fn, _ in entries(mod)
        for weight, gradient in noted_names(fn, "gradients").items()
    }
    for _, fn, _ in entries(mod):
        weights |= _product_meshes(fn, homes)
    for rule in other_rules.values():
        home = weights.get(rule.name) if rule.kind == "value" else None
        if home is not None:
            rules.append(replace(rule, mesh=home))
            continue
        raise PlanError(
            "DIST0232",
            f'another strategy places {rule.title}, whose mesh "{LOCAL_LAYERS}" does not decide',
            location="strategy",
            remedy='Use strategies that place weights and data only, such as "data_parallel".',
        )
    return replace(branches, rules=tuple(rules), recompute=others.recompute)


def _product_meshes(fn: relax.Function, homes: Mapping[str, str]) -> dict[str, str]:
    """Return the meshes of products with parameters, or with views of them, by name."""
    meshes = {p: homes[name] for p in fn.params if (name := glob.escape(str(p.name))) in homes}
    products = {}
    for block in fn.body.blocks:
        for binding in block.bindings:
            op, operands = op_name(binding.value), variables(binding.value)
            if op in VIEWS and not meshes.keys().isdisjoint(operands):
                meshes[binding.var] = meshes[operands[0]]
            elif op == "matmul" and len(operands) == 2 and operands[1] in meshes:
                products[glob.escape(str(binding.var.name))] = meshes[operands[1]]
    return products


def _submeshes(mesh: MeshSpec, number: int) -> list[MeshSpec]:
    """Return a mesh per place along an axis, of the other axes."""
    axes = [(name, size) for i, (name, size) in enumerate(mesh.axes.items()) if i != number]
    local_axes = dict(axes or [(mesh.axis_names[number], 1)])
    ids = np.moveaxis(mesh_devices(mesh.device_mesh()), number, 0)
    return [
        MeshSpec(f"mesh{i}", local_axes, device_ids=tuple(int(d) for d in part.ravel()))
        for i, part in enumerate(ids)
    ]


class _Placing:
    """Placement of the nodes of a function on meshes."""

    def __init__(
        self, g: Graph, branches: Branches, submeshes: Sequence[MeshSpec], rule_name: str | None
    ) -> None:
        self._g, self._submeshes, self._rule_name = g, submeshes, rule_name
        self._counted = branches.counted
        self._where: dict[int, int] = {}
        self._rules: list[PlanRule] = []
        names = {key: str(var.name) for key, var in g.variables.items()}
        often = Counter(names.values())
        self._names = {k: names[key] for key, k in g.node_of.items() if often[names[key]] == 1}
        for group in branches.groups:
            forked = any(next(self._beginnings(branch), None) is not None for branch in group)
            put = balanced(group, len(submeshes), last=forked)
            for branch, submesh in zip(group, put, strict=True):
                if submesh:
                    self._branch(branch, submesh, forked)

    def rules(self, name: str, fn: relax.Function) -> list[PlanRule]:
        """Return the rules of the function, those of its parameters first."""
        data, flat = data_positions(fn, name), flat_positions(fn)
        rules = []
        for parameter in tensor_parameters(name, fn, self._rule_name):
            value = self._g.param_values[flat[parameter.position]]
            submeshes = {
                self._where.get(k, 0) for k, _ in self._g.uses[value] if self._counted >> k & 1
            }
            mesh = self._submeshes[submeshes.pop() if len(submeshes) == 1 else 0]
            replicated = (R,) * len(mesh.axes)
            stationary = parameter.position not in data
            title = glob.escape(parameter.name)
            rules.append(
                PlanRule("param", title, replicated, mesh.name, stationary, parameter.function)
            )
        return [*rules, *self._rules]

    def _beginnings(self, branch: ParallelBranch) -> Iterator[int]:
        """Yield the nodes of a branch that take only the results of others."""
        nodes = set(members(branch))
        for k in sorted(nodes):
            producers = self._made(k)
            if producers and not nodes.intersection(producers):
                yield k

    def _made(self, node: int) -> list[int]:
        """Return the ops and calls that give the operands of a node."""
        g = self._g
        producers = [g.producer[v][0] for v in g.nodes[node].operands if v >= 0]
        return [n for n in producers if g.nodes[n].kind in ("op", "call")]

    def _branch(self, branch: ParallelBranch, submesh: int, forked: bool) -> None:
        """Put a branch on the mesh of a place: its inputs, and its results.

        Transfers keep their place in the program. Towers send what they give when the first
        is through. Branches off a stem leave it before the last begins, which stays there;
        what they give meets its result on their mesh, so that it does not wait for them before.
        """
        g = self._g
        nodes = set(members(branch))
        self._where.update(dict.fromkeys(nodes, submesh))
        for k in self._beginnings(branch):
            if g.nodes[k].kind == "call":
                self._arguments(k, submesh)
            else:  # it runs where its operands are, and what it gives moves
                self._where[k] = 0
                if k != branch.last:
                    self._pin(k, submesh)
        readers = {n for v in g.nodes[branch.last].results for n, _ in g.uses[v]}
        if branch.ends or not self._where[branch.last] or readers & nodes:
            return
        shared_readers = sorted(n for n in readers if self._counted >> n & 1)
        if forked and shared_readers and all(self._meets(n) for n in shared_readers):
            for n in shared_readers:
                self._pin(n, 0)
        else:
            self._pin(branch.last, 0)

    def _meets(self, node: int) -> bool:
        """Return whether a node is an op of computed operands only: no weight follows it."""
        g = self._g
        operands = [v for v in g.nodes[node].operands if v >= 0]
        return g.nodes[node].kind == "op" and len(self._made(node)) == len(operands)

    def _pin(self, node: int, submesh: int) -> None:
        """Put the result of a node on a mesh, where it is a single tensor."""
        mesh = self._submeshes[submesh]
        if node in self._names and len(self._g.nodes[node].results) == 1:
            title, nowhere = glob.escape(self._names[node]), (None,) * len(mesh.axes)
            rule = PlanRule("value", title, nowhere, mesh.name, function=self._rule_name)
            self._rules.append(rule)

    def _arguments(self, node: int, submesh: int) -> None:
        """Put the tensors that a call takes from elsewhere on a mesh."""
        g, mesh = self._g, self._submeshes[submesh]
        calls = [binding for binding in g.bindings if callee_of(binding.value) is not None]
        index = next(i for i, b in enumerate(calls) if g.node_of.get(handle(b.var)) == node)
        call = calls[index].value
        callee = str(call.op.name_hint)
        number = sum(str(b.value.op.name_hint) == callee for b in calls[:index])
        for i, arg in enumerate(call.args):
            cached = g.env.get(handle(arg), ())
            kind = g.nodes[g.producer[cached[0]][0]].kind if len(cached) == 1 else ""
            if kind in ("op", "call") and tensor_type(arg.ty) is not None:
                labels = (None,) * len(mesh.axes)
                rule = PlanRule(
                    "call", callee, labels, mesh.name,
                    function=self._rule_name, index=number, arg=i,
                )  # fmt: skip
                self._rules.append(rule)

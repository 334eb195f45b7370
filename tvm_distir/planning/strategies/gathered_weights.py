# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Place weights that are stored in parts whole where the layers of a training step use them."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import R, is_private, known_shape, unpack
from tvm_distir.core.plan import MeshSpec, OpenLabels, PlanRule
from tvm_distir.core.rewriting import callee_of, callees_first, op_name, variables
from tvm_distir.transforms import CallSites

from .data_parallelism import BATCH_DIM
from .model_info import some_axes
from .training_parts import new_names

VIEWS = frozenset({"permute_dims", "astype"})
"""Ops through which a product reads a weight."""

PRODUCTS = frozenset({"matmul", "einsum"})
"""Ops of products of activations and weights, and of the gradients of weights."""

_MATRIX = 2


def gathered_in_layers(
    mod: ir.IRModule,
    weights: Mapping[str, Collection[int]],
    batches: Mapping[str, int],
    mesh: MeshSpec,
    batch_axes: Collection[int],
    state_axes: Collection[int],
    stored: Mapping[str, Mapping[int, OpenLabels]],
) -> Iterator[PlanRule]:
    """Yield the rules by which the functions of a training step gather the weights that they use.

    A product could also send its activations and use the weight in parts, which is less traffic
    for small batches. That is tensor parallelism, whose collectives the next op waits for; gathers
    of weights overlap with the layer before. Functions that update weights use them in parts.
    Products of the entry, as the head of a language model, are of the samples of a device.

    Where all axes divide the samples, what a layer multiplies with a weight, or to its gradient,
    has the samples of a device and no collective moves it: otherwise a whole weight could be cut
    again, and its product computed from the activations of all devices.

    Parameters
    ----------
    mod : IRModule
        A training step, at level 1.
    weights : mapping of str to collection of int
        Positions of the weights that are stored in parts, by entry function.
    batches : mapping of str to int
        The samples that the axes divide, by entry function; without one, none are divided.
    mesh : MeshSpec
    batch_axes, state_axes : collection of int
        The numbers of the axes that divide the samples, and of those along which weights are
        stored in parts.
    stored : mapping of str to mapping of int to labels
        The labels of weights that another strategy shards too, by entry function and position.
        Propagation could gather these once for both passes, and keep them, as they may move.
    """
    calls = CallSites(mod, weights)
    updates, labels = _updates(mod, calls), _stored_labels(mod, calls, stored)
    samples = some_axes(mesh, dict.fromkeys(batch_axes, BATCH_DIM))
    gathered = some_axes(mesh, dict.fromkeys(state_axes, R))
    stationary = set(batch_axes) == set(range(len(mesh.axes)))

    def held(fn: relax.Function, name: str, used: Collection[Any]) -> Iterator[PlanRule]:
        for var in _activations(fn, used, set(batches.values())) if stationary else ():
            kind = "param" if var in set(fn.params) else "value"
            title = glob.escape(str(var.name))
            yield PlanRule(kind, title, samples, mesh.name, stationary=True, function=name)

    for name, positions in weights.items():
        batch = batches.get(name)
        for value in () if batch is None else _products(mod[name], positions, batch):
            yield PlanRule("value", glob.escape(value), samples, mesh.name, function=name)
    for gv, fn in calls.functions.items():
        if not is_private(fn) or not calls.of[gv] or gv in updates:
            continue
        used = {
            var
            for block in fn.body.blocks
            for binding in block.bindings
            if callee_of(binding.value) is None
            for var in variables(binding.value)
        }
        early = calls.early_params(gv)
        for number in sorted(early):
            param = fn.params[number]
            if param not in used:
                continue
            parts = labels[gv][number]
            if parts is None and any(stored.values()):
                continue
            full = gathered if parts is None else _without(parts, state_axes)
            name = str(gv.name_hint)
            yield PlanRule("param", glob.escape(str(param.name)), full, mesh.name, function=name)
            if parts is not None:
                for caller in sorted({str(caller.name_hint) for caller, _ in calls.of[gv]}):
                    yield PlanRule("call", name, parts, mesh.name, function=caller, arg=number)
        yield from held(fn, str(gv.name_hint), {fn.params[number] for number in early})


def _stored_labels(
    mod: ir.IRModule, calls: CallSites, stored: Mapping[str, Mapping[int, OpenLabels]]
) -> dict[Any, list[OpenLabels | None]]:
    """Return the labels of the weights that parameters stand for, None where these differ."""
    known: dict[Any, dict[Any, OpenLabels | None]] = {}  # by function and parameter
    for gv, fn in reversed(callees_first(mod, calls.callees)):
        params = unpack(fn.params)
        if not is_private(fn):
            labels = stored.get(str(gv.name_hint), {})
            known[gv] = {param: labels.get(number) for number, param in enumerate(params)}
            continue
        met: list[set[OpenLabels | None]] = [set() for _ in params]
        for caller, call in calls.of[gv]:
            for labels_met, arg in zip(met, unpack(call.value.args), strict=True):
                labels_met.add(known[caller].get(arg))
        known[gv] = {
            param: labels_met.pop() if len(labels_met) == 1 else None
            for param, labels_met in zip(params, met, strict=True)
        }
    return {gv: list(of_params.values()) for gv, of_params in known.items()}


def _without(labels: OpenLabels, axes: Collection[int]) -> OpenLabels:
    """Return labels that are replicated along axes."""
    return tuple(R if axis in axes else label for axis, label in enumerate(labels))


def _products(fn: relax.Function, positions: Collection[int], batch: int) -> Iterator[str]:
    """Yield the names of products of samples and stored weights, or views of them, in an entry.

    Their first dim is a multiple of the ``batch``, which the axis divides.
    """
    weights = {fn.params[position] for position in positions}
    for block in fn.body.blocks:
        for binding in block.bindings:
            op, operands = op_name(binding.value), variables(binding.value)
            if op in VIEWS and not weights.isdisjoint(operands):
                weights.add(binding.var)
            elif op == "matmul" and len(operands) == 2:
                x, weight = operands
                if x in weights or weight not in weights:
                    continue
                shape = known_shape(binding.var.ty)
                if shape and shape[0] % batch == 0:
                    yield str(binding.var.name)


def _activations(
    fn: relax.Function, weights: Collection[Any], batches: Collection[int]
) -> list[Any]:
    """Return what a function multiplies with weights, or to the gradients of weights.

    Each has three dims at least, of which the first is that of the samples, and its name alone. The
    matrices of experts are stacked in a third dim: their tokens are not divided by samples.
    """
    matrices = {var for var in weights if len(known_shape(var.ty) or ()) == _MATRIX}
    activations: dict[Any, None] = {}
    bindings = [binding for block in fn.body.blocks for binding in block.bindings]
    for binding in bindings:
        if op_name(binding.value) in VIEWS and not matrices.isdisjoint(variables(binding.value)):
            matrices.add(binding.var)
    shapes = {known_shape(var.ty) for var in matrices}
    shapes |= {None if shape is None else shape[::-1] for shape in shapes}
    for binding in bindings:
        operands = variables(binding.value)
        if op_name(binding.value) not in PRODUCTS or len(operands) != _MATRIX:
            continue
        read = [x for x in operands if x not in matrices]
        if len(read) == 1 or known_shape(binding.var.ty) in shapes:
            activations |= dict.fromkeys(x for x in read if _has_samples(x, batches))
    names = Counter(str(var.name) for var in (*fn.params, *(b.var for b in bindings)))
    return [var for var in activations if names[str(var.name)] == 1]


def _has_samples(var: Any, batches: Collection[int]) -> bool:
    shape = known_shape(var.ty) or ()
    return len(shape) > _MATRIX and shape[0] in batches


def _updates(mod: ir.IRModule, calls: CallSites) -> set[Any]:
    """Return the functions that compute new weights."""
    updated, rules = new_names(mod), set()
    for fn in calls.functions.values():
        bindings = [b for block in fn.body.blocks for b in block.bindings]
        callees = {b.var: callee_of(b.value) for b in bindings if callee_of(b.value) is not None}
        for binding in bindings:
            value = binding.value
            source = value.tuple_value if type(value) is relax.TupleGetItem else binding.var
            if source in callees and str(binding.var.name) in updated:
                rules.add(callees[source])
    return rules

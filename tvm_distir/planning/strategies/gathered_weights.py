# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Place weights that are stored in parts whole where the layers of a training step use them."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tvm import ir, relax

from tvm_distir.core import MeshSpec, PlanRule, R, is_private, known_shape, op_name, variables
from tvm_distir.transforms import CallSites, callee_of

from .data_parallelism import BATCH_DIM
from .model_info import some_axes
from .training_parts import new_names

VIEWS = frozenset({"permute_dims", "astype"})
"""Ops through which a product reads a weight."""


def gathered_in_layers(
    mod: ir.IRModule,
    weights: Mapping[str, Collection[int]],
    batches: Mapping[str, int],
    mesh: MeshSpec,
    batch_axes: Collection[int],
    state_axes: Collection[int],
) -> Iterator[PlanRule]:
    """Yield the rules by which the functions of a training step gather the weights that they use.

    A product could also send its activations and use the weight in parts, which is less traffic
    for small batches. That is tensor parallelism, whose collectives the next op waits for; gathers
    of weights overlap with the layer before. Functions that update weights use them in parts.
    Products of the entry, as the head of a language model, are of the samples of a device.

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
    """
    calls = CallSites(mod, weights)
    updates = _updates(mod, calls)
    samples = some_axes(mesh, dict.fromkeys(batch_axes, BATCH_DIM))
    gathered = some_axes(mesh, dict.fromkeys(state_axes, R))
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
        for position in sorted(calls.early_params(gv)):
            if fn.params[position] in used:
                yield PlanRule(
                    "param",
                    glob.escape(str(fn.params[position].name)),
                    gathered,
                    mesh.name,
                    function=str(gv.name_hint),
                )


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

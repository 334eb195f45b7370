# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Describe a plan by what it divides, and into how many parts, whatever its axes are called."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_distir.core.ir import relax_functions, static_shape
from tvm_distir.core.ir.attributes import param_names, training_notes
from tvm_distir.core.ops import size_bytes
from tvm_distir.core.plan import Plan, data_positions
from tvm_distir.hardware import shard_bytes


def parts_text(module: ir.IRModule, plan: Plan) -> str:
    """Return into how many parts a plan divides data, weights and states, as ``data/64 states/8``.

    Parts of the data are those of the input that is divided most: the placement of small inputs,
    such as token ids, says nothing of the work. Parts of weights and states are those of their
    bytes on average. What is not divided is left out; a plan that divides nothing is
    ``replicated``.

    Parameters
    ----------
    module : IRModule
        The module that is distributed.
    plan : Plan
        The plan, whose rules give each parameter its placement, on a single mesh.
    """
    sizes = tuple(plan.meshes[0].axes.values())
    placements = {
        (rule.function, rule.name): rule.placement for rule in plan.rules if rule.kind == "param"
    }
    totals: dict[str, list[int]] = {"data": [0, 0], "weights": [0, 0], "states": [0, 0]}
    functions = {function for function, _ in placements}
    for variable, fn in relax_functions(module):
        name = str(variable.name_hint)
        if name not in functions and not (name == "main" and None in functions):
            continue
        data = set(data_positions(fn, name))
        states = {str(s) for names in training_notes(fn, "states").values() for s in names}
        for position, (text, var) in enumerate(zip(param_names(fn), fn.params, strict=True)):
            placement = placements.get((name, text), placements.get((None, text)))
            if placement is None:
                continue
            kind = "data" if position in data else "states" if text in states else "weights"
            size = size_bytes(static_shape(var.ty) or (), str(var.ty.dtype))
            labels: Any = [-1 if label is None else label for label in placement]
            part = shard_bytes(size, sizes, labels)
            if kind != "data":
                totals[kind][0] += size
                totals[kind][1] += part
            elif part * totals[kind][0] < size * totals[kind][1] or not totals[kind][1]:
                totals[kind] = [size, part]
    counts = {kind: round(full / part) for kind, (full, part) in totals.items() if part}
    return " ".join(f"{kind}/{n}" for kind, n in counts.items() if n > 1) or "replicated"

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random plans: one or two meshes of up to 16 devices, rules of every kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import ir, relax

MESHES = (
    *((2,), (2,), (3,), (4,), (4,), (5,), (8,), (16,)),
    *((2, 2), (2, 2), (2, 3), (3, 2), (4, 2), (2, 4), (4, 4), (2, 8), (8, 2), (1, 4), (3, 4)),
    *((2, 2, 2), (2, 2, 2), (2, 3, 2), (4, 2, 2), (2, 2, 4), (1, 2, 2)),
)
SECOND = ((2,), (2, 2), (4,), (3,))
MOST_DEVICES = 16


def _shape(ty: Any) -> tuple[int, ...] | None:
    if not isinstance(ty, relax.TensorType):
        return None
    return tuple(int(n) for n in ty.shape)


def placement(
    rng: np.random.Generator, shape: Sequence[int], mesh: Sequence[int], open_share: float = 0.05
) -> str:
    """A placement the plan's checks allow: several axes give each shard of a dim an element.

    A dim is seldom cut into more parts than it has elements by one axis, which may be.
    """
    labels = [
        int(rng.integers(0, len(shape))) if shape and rng.random() < 0.65 else -1 for _ in mesh
    ]
    for dim in range(len(shape)):
        axes = [a for a, label in enumerate(labels) if label == dim]
        count = math.prod(mesh[a] for a in axes)
        few = shape[dim] <= count and (len(axes) > 1 or rng.random() < 0.97)
        if axes and shape[dim] % count and few:
            for a in axes:
                labels[a] = -1
    words = ["R" if label < 0 else f"S[{label}]" for label in labels]
    return ", ".join("?" if rng.random() < open_share else word for word in words)


class _Rules:
    """Collects the rules of one plan."""

    def __init__(self, rng: np.random.Generator, meshes: dict[str, tuple[int, ...]]) -> None:
        self.rng, self.meshes = rng, meshes
        self.rules: list[dict[str, Any]] = []

    def add(
        self, head: dict[str, Any], ty: Any, stationary_share: float, second_share: float
    ) -> None:
        """A rule for a tensor of the type; nothing for what is no tensor."""
        shape = _shape(ty)
        if shape is None:
            return
        names = list(self.meshes)
        name = names[-1] if self.rng.random() < second_share else names[0]
        rule = {**head, "placement": placement(self.rng, shape, self.meshes[name])}
        if len(names) > 1:
            rule["mesh"] = name
        if "param" in head or self.rng.random() < stationary_share:
            rule["stationary"] = bool(self.rng.random() < stationary_share)
        self.rules.append(rule)


def plan_dict(
    seed: int,
    mod: ir.IRModule,
    choices: Sequence[tuple[int, ...]] = MESHES,
    second_share: float = 0.2,
) -> dict[str, Any]:
    """The plan of a seed for a module, in JSON form; sometimes with a second mesh."""
    rng = np.random.default_rng([seed, 2])
    mesh = choices[int(rng.integers(len(choices)))]
    shapes = {"mesh0": mesh}
    second = SECOND[int(rng.integers(len(SECOND)))]
    if rng.random() < second_share and math.prod(mesh) + math.prod(second) <= MOST_DEVICES:
        shapes["mesh1"] = second
    created = _Rules(rng, shapes)
    for param in mod["main"].params:
        if rng.random() < 0.7:
            created.add({"param": str(param.name)}, param.ty, 0.2, 0.15)
    values = _variables(mod["main"])
    for number, var in enumerate(values):
        if rng.random() < 0.12:
            late = 0.9 if number * 2 > len(values) else 0.1
            created.add({"value": str(var.name)}, var.ty, 0.1, late)
    for gv, fn in mod.functions.items():
        name = str(gv.name_hint)
        if name == "main" or not isinstance(fn, relax.Function):
            continue
        for var in [*fn.params, *_variables(fn)]:
            kind = "param" if var in list(fn.params) else "value"
            if rng.random() < 0.06:
                created.add({kind: str(var.name), "function": name}, var.ty, 0.05, 0)
        calls = [b for b in _bindings(mod["main"]) if _callee(b.value) == name]
        for index, binding in enumerate(calls):
            for arg, value in enumerate(binding.value.args):
                if rng.random() < 0.12:
                    created.add({"call": name, "index": index, "arg": arg}, value.ty, 0.05, 0.1)
    if not created.rules:
        param = mod["main"].params[0]
        created.add({"param": str(param.name)}, param.ty, 0.1, 0)
    if rng.random() < 0.5:
        _state_order(rng, created.rules, list(shapes))
    return {"schema_version": 1, **_mesh_keys(shapes, rng), "rules": created.rules}


def _state_order(
    rng: np.random.Generator, rules: Sequence[dict[str, Any]], meshes: Sequence[str]
) -> None:
    """State an order of the axes that shard a dim of a parameter together, of the first there is.

    Of a single one, since orders of values that calls tie must not differ.
    """
    for rule in rules:
        words = rule["placement"].split(", ")
        several = any(word[0] == "S" and words.count(word) > 1 for word in words)
        if "param" not in rule or "function" in rule or "?" in words or not several:
            continue
        letter = "ab"[meshes.index(rule.get("mesh", meshes[0]))]
        dims: list[Any] = [None] * (1 + max(int(word[2:-1]) for word in words if word != "R"))
        for axis in rng.permutation(len(words)):
            if words[axis] != "R":
                dim = int(words[axis][2:-1])
                dims[dim] = [*(dims[dim] or ()), f"{letter}{axis}"]
        rule["placement"] = [axes[0] if axes and len(axes) == 1 else axes for axes in dims]
        return


def _mesh_keys(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, Any]:
    """Axes and devices; half of the second meshes share devices with the first."""
    axes = {
        name: {f"{'ab'[i]}{j}": n for j, n in enumerate(shape)}
        for i, (name, shape) in enumerate(shapes.items())
    }
    if len(shapes) == 1:
        return {"mesh": axes["mesh0"]}
    start = math.prod(shapes["mesh0"])
    if rng.random() < 0.5:
        start = int(rng.integers(shapes["mesh0"] == shapes["mesh1"], start + 1))
    return {
        "meshes": {
            "mesh0": {"axes": axes["mesh0"]},
            "mesh1": {"axes": axes["mesh1"], "start": start},
        }
    }


def _bindings(fn: relax.Function) -> list[Any]:
    return [b for block in fn.body.blocks for b in block.bindings]


def _variables(fn: relax.Function) -> list[Any]:
    return [b.var for b in _bindings(fn)]


def _callee(value: Any) -> str:
    op = getattr(value, "op", None)
    return str(op.name_hint) if isinstance(op, ir.GlobalVar) else ""

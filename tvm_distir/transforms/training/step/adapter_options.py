# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the options of low-rank adapters, and add trained adapters to their weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir

from tvm_distir.core.plan import match_name, plain_name
from tvm_distir.support import nearest, parse_float, parse_int, shortened
from tvm_distir.transforms.step_faults import wrong_argument

ALL_LINEAR = "all-linear"
"""Targets: every product with a matrix but the one that makes the output of the model."""
ADAPTERS_ATTR = "dist.adapters"
"""Attribute of a module: per weight its adapters, their factor, and 1 where it is (in, out)."""
_STEM = re.compile(r"(.*?)([._]weight)?$", re.DOTALL)


@dataclass(frozen=True)
class Lora:
    """Options of low-rank adapters.

    Attributes
    ----------
    r : int
        The rank.
    alpha : float
        Adapters are multiplied by ``alpha / r``.
    targets : tuple of str
        Names of layers, such as ``q_proj``, patterns of weights, or :data:`ALL_LINEAR`.
    """

    r: int = 8
    alpha: float = 8.0
    targets: tuple[str, ...] = (ALL_LINEAR,)

    @staticmethod
    def parse(text: str) -> Lora:
        """Parse ``r=16,alpha=32,targets=q_proj+v_proj`` (ModelError DIST0351)."""
        values: dict[str, Any] = {}
        for item in text.split(","):
            key, _, value = (word.strip() for word in item.partition("="))
            parsed: int | float | tuple[str, ...] | None = None
            if key == "r":
                parsed = parse_int(value, 1)
            elif key == "alpha":
                parsed = number if 0 < (number := parse_float(value)) < float("inf") else None
            elif key == "targets":
                names = tuple(name.strip() for name in value.split("+"))
                parsed = names if all(names) else None
            if parsed is None or key in values:
                problem = f'"{shortened(item)}" is not an option of adapters'
                remedy = "Write r=16,alpha=32,targets=q_proj+v_proj, each once."
                raise wrong_argument(problem, remedy, "lora")
            values[key] = parsed
        return Lora(**values)

    @property
    def factor(self) -> float:
        """Return the factor of adapters."""
        return self.alpha / self.r

    def target_of(self, name: str) -> str | None:
        """Return the first target that fits a weight; None without one."""
        layer = layer_of(name)
        for target in self.targets:
            named = plain_name(layer) == plain_name(target) or any(
                layer.endswith(mark + target) for mark in "._"
            )
            if named or target == ALL_LINEAR or match_name(target, name):
                return target
        return None


def layer_of(name: str) -> str:
    """Return the name of the layer of a weight."""
    match = _STEM.fullmatch(name)
    return name if match is None else match[1]


def adapter_names(name: str) -> list[str]:
    """Return the names of the adapters of a weight."""
    layer = layer_of(name)
    end = name.removeprefix(layer)
    mark = "_" if end == "_weight" or "." not in name else "."
    return [f"{layer}{mark}{part}{end}" for part in ("lora_A", "lora_B")]


def adapters_of(mod: ir.IRModule) -> list[str]:
    """Return the names of the adapters of a model."""
    return [name for note in _notes(mod).values() for name in note[:2]]


def _notes(mod: ir.IRModule) -> dict[str, list[str]]:
    notes = (mod.attrs or {}).get(ADAPTERS_ATTR, {})
    return {str(name): [str(part) for part in note[:]] for name, note in notes.items()}


def merge_adapters(
    step: ir.IRModule, weights: Mapping[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Return the weights of a model with those of its adapters added, ``w + (alpha / r) B A``.

    Parameters
    ----------
    step : IRModule
        The training step, as ``train_step(lora=)`` makes it.
    weights : mapping of str to array
        Weights and adapters by name, such as the inputs or results of the step.

    Returns
    -------
    dict of str to array
        The weights by name, without adapters. Sums are computed in float32 at least.

    Raises
    ------
    ModelError
        DIST0351 for a step without adapters, or where an adapter or its weight is missing.
    """
    notes = _notes(step)
    if not notes:
        raise wrong_argument("the step has no adapters", "Make it by train_step(lora=...).", "lora")
    merged = dict(weights)
    for name, (down, up, scale, transposed) in notes.items():
        for needed in (name, down, up):
            if needed not in weights:
                remedy = nearest(needed, list(weights))
                raise wrong_argument(f'there is no weight "{needed}"', remedy, "lora")
        weight = weights[name]
        dtype = np.result_type(np.float32, weight.dtype)
        delta = merged.pop(up).astype(dtype) @ merged.pop(down).astype(dtype) * dtype.type(scale)
        total = weight.astype(dtype) + (delta.T if int(transposed) else delta)
        merged[name] = total.astype(weight.dtype)
    return merged

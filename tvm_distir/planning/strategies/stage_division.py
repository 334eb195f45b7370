# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Divide a forward pass into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir import is_private, static_shape, tensor_type
from tvm_distir.core.ops import size_bytes
from tvm_distir.core.plan import data_positions
from tvm_distir.core.rewriting import callee_of, variables
from tvm_distir.support import PlanError, shortened


def even_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Return the number of layers of each stage, where none are stated.

    Layers that are left over go to the stages before the last one, which has the output layer
    too, the latest first; as vLLM divides them.
    """
    least, more = divmod(layers, stages)
    return tuple(least + (stages - 1 - more <= k < stages - 1) for k in range(stages))


def slashed_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a text such as ``4/4/3``; none where it is not of this kind."""
    words = text.split("/")
    numeric = all(word.isascii() and word.isdigit() and len(word) < 7 for word in words)
    return tuple(map(int, words)) if numeric else ()


def unfit(problem: str, remedy: str) -> PlanError:
    """Return the error of a module that is not divided into stages."""
    return PlanError("DIST0233", problem, location='strategy "pipeline"', remedy=remedy)


class StageDivision:
    """Division of the bindings of an entry into stages.

    Parameters
    ----------
    mod : IRModule
    fn : relax.Function
    stages : int
    layers : str
        See :func:`.forward_stages.forward_stages`.

    Attributes
    ----------
    bindings : list of Binding
        Those of the entry.
    stage_of : list of int
        The stage of each binding.
    """

    def __init__(self, mod: ir.IRModule, fn: relax.Function, stages: int, layers: str) -> None:
        self.mod, self.fn, self.stages = mod, fn, stages
        self.bindings = [b for block in fn.body.blocks for b in block.bindings]
        calls = [i for i, b in enumerate(self.bindings) if self._callee(b.value)]
        if layers or len(calls) >= stages:
            self.stage_of = self._by_calls(calls, layers)
        else:
            self.stage_of = self._by_weights()

    def _callee(self, value: Any) -> str:
        """Return the private function that a value calls, or an empty string."""
        callee = callee_of(value)
        called = None if callee is None else self.mod[callee]
        is_layer = isinstance(called, relax.Function) and is_private(called)
        return str(value.op.name_hint) if is_layer else ""

    @cached_property
    def calls(self) -> list[tuple[int, str, int]]:
        """Return the binding, the callee and the number among its calls, of each call."""
        counts: dict[str, int] = {}
        result = []
        for at, binding in enumerate(self.bindings):
            if callee_of(binding.value) is not None:
                name = str(binding.value.op.name_hint)
                result.append((at, name, counts.get(name, 0)))
                counts[name] = counts.get(name, 0) + 1
        return result

    def _by_calls(self, calls: Sequence[int], layers: str) -> list[int]:
        """Divide the calls of layers; what is between two of them belongs to the first."""
        counts = even_layers(len(calls), self.stages)
        if layers:
            evenly, counts = counts, slashed_numbers(layers)
            if len(counts) != self.stages or sum(counts) != len(calls) or min(counts) < 1:
                raise unfit(
                    f'layers="{shortened(layers)}" does not divide {len(calls)} layers into '
                    f"{self.stages} stages",
                    f"Write the layers of each stage: {'/'.join(map(str, evenly))}.",
                )
        ends = [calls[k] for k in np.cumsum(counts)[:-1]]
        return [sum(at >= end for end in ends) for at in range(len(self.bindings))]

    def _by_weights(self) -> list[int]:
        """Divide a module without layers by the bytes of the weights that bindings read first."""
        data = data_positions(self.fn)
        weights = [p for i, p in enumerate(self.fn.params) if i not in data]
        left = {}
        for param in weights:
            tensor = tensor_type(param.ty)
            if tensor is not None:
                left[param] = size_bytes(static_shape(param.ty) or (), str(tensor.dtype))
        sizes = [
            float(sum(left.pop(v, 0) for v in variables(b.value) if v in left))
            for b in self.bindings
        ]
        before = np.concatenate([[0.0], np.cumsum(sizes)])
        middle = before[:-1] + np.array(sizes) / 2
        stage_of = np.minimum(middle / max(before[-1], 1.0) * self.stages, self.stages - 1)
        result: list[int] = stage_of.astype(int).tolist()
        weighted = {stage for stage, size in zip(result, sizes, strict=True) if size}
        if len(weighted) < self.stages:
            raise unfit(
                f"the weights of the module fill {len(weighted)} of {self.stages} stages",
                "Use fewer stages, or a model with more layers.",
            )
        return result

    def first_reader(self, param: relax.Var) -> int:
        """Return the first stage that reads a parameter; the first one if none does."""
        return self._first_readers.get(param, 0)

    @cached_property
    def activations(self) -> set[relax.Var]:
        """Return the variables that follow from weights."""
        data = set(data_positions(self.fn))
        result = {p for i, p in enumerate(self.fn.params) if i not in data}
        for binding in self.bindings:
            if any(var in result for var in variables(binding.value)):
                result.add(binding.var)
        return result

    @cached_property
    def _first_readers(self) -> dict[relax.Var, int]:
        result: dict[relax.Var, int] = {}
        for binding, stage in zip(self.bindings, self.stage_of, strict=True):
            for var in variables(binding.value):
                result.setdefault(var, stage)
        return result

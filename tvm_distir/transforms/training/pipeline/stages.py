# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split a forward model into stages, each a private function between activations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, relax

from tvm_distir.core.plan import Recomputation
from tvm_distir.core.rewriting import substitute, variables
from tvm_distir.transforms.training.autodiff.function_table import (
    NamedFunctions,
    private_function,
    tuple_of,
)
from tvm_distir.transforms.training.step.dropouts import from_first_stream

from .cutting import Flat, split_stages

STAGE = "part"
"""Begins the names of stages' private functions."""


@dataclass(frozen=True)
class Layer:
    """Call of a private function of the model inside a stage.

    Attributes
    ----------
    name : str
        The name of the function.
    label : str
        The name of the call's value.
    args : tuple of Var
        The arguments that are variables of the full model, by position.
    policy : str
        The recomputation policy of its backward pass.
    """

    name: str
    label: str
    args: tuple[Any, ...]
    policy: str


@dataclass(frozen=True)
class ModelStage:
    """Stage of a forward model.

    Attributes
    ----------
    function : GlobalVar
        The function ``(*activations, *data, *weights) -> (*outputs, *statistics)``, which returns
        no tuple where there is a single result. Equal stages share it.
    activations : tuple of Var
        The activations of the preceding stages, which are variables of the full model.
    data, weights : tuple of Var
        Parameters of the whole model that it reads.
    outputs : tuple of Var
        The values that later stages read, or the loss.
    statistics : tuple of Var
        The weights that are running statistics of which the stage returns new values.
    layers : tuple of Layer
    first_stream : int
        The number that is added to the first of a micro-batch's streams of random numbers.
    """

    function: ir.GlobalVar
    activations: tuple[Any, ...]
    data: tuple[Any, ...]
    weights: tuple[Any, ...]
    outputs: tuple[Any, ...]
    statistics: tuple[Any, ...]
    layers: tuple[Layer, ...]
    first_stream: int = 0

    @property
    def params(self) -> tuple[Any, ...]:
        """Return all variables that the function reads, in order."""
        return (*self.activations, *self.data, *self.weights)


class Policies:
    """Recomputation policies of the calls of each function, in the order of the calls.

    Parameters
    ----------
    recompute : Recomputation
    """

    def __init__(self, recompute: Recomputation) -> None:
        self.recompute = recompute
        self._calls: Counter[str] = Counter()

    def next(self, name: str) -> str:
        """Return the policy of the next call of a function."""
        self._calls[name] += 1
        return self.recompute.of(name).of_call(self._calls[name] - 1)


def cut_model(
    flat: Flat,
    functions: NamedFunctions,
    stages: int,
    names: Sequence[str],
    recompute: Recomputation,
) -> list[ModelStage]:
    """Split a forward model, and add the stages' functions to those of the model.

    An activation that a later stage reads passes through all stages in between. Equal stages whose
    calls have the same recomputation policies share a function.

    Raises
    ------
    ModelError
        DIST0354 see :func:`.cutting.split_stages`.
    """
    stage_functions: dict[Any, list[ir.GlobalVar]] = {}
    policies, result = Policies(recompute), list[ModelStage]()
    first, inputs = 0, tuple[Any, ...]()
    for end in split_stages(flat, functions, stages, names):
        bindings = [b for b in flat.bindings[first : end + 1] if b.var not in flat.anywhere]
        outputs = tuple(flat.live[end]) or (flat.loss,)
        result.append(
            _stage(
                len(result), flat, bindings, inputs, outputs, functions, policies, stage_functions
            )
        )
        # the outputs of a stage are the inputs of the next, in the same order
        first, inputs = end + 1, outputs
    return result


def _stage(
    number: int,
    flat: Flat,
    stage_bindings: list[Any],
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...],
    functions: NamedFunctions,
    policies: Policies,
    shared: dict[Any, list[ir.GlobalVar]],
) -> ModelStage:
    bindings = [*_needed(flat, stage_bindings), *stage_bindings]
    first_stream, bindings = from_first_stream(bindings, flat.stream)
    inside = {b.var for b in bindings}
    read = dict.fromkeys(
        v for b in bindings for v in variables(b.value) if v not in inside and v not in inputs
    )
    data = tuple(v for v in read if v not in flat.weights)
    weights = tuple(v for v in read if v in flat.weights)
    env = {v: relax.Var(str(v.name), v.ty) for v in inputs}  # they were of a dataflow block
    inner = [relax.VarBinding(b.var, substitute(b.value, env)) for b in bindings]
    statistics = {flat.statistics[b.var]: b.var for b in stage_bindings if b.var in flat.statistics}
    result_vars = [env.get(v, v) for v in (*outputs, *statistics.values())]
    result = result_vars[0] if len(result_vars) == 1 else tuple_of(result_vars)
    fn = private_function(f"{STAGE}{number}", [*env.values(), *data, *weights], inner, result)
    layers = _layers(stage_bindings, policies)
    gv = _shared(fn, number, functions, tuple(layer.policy for layer in layers), shared)
    return ModelStage(gv, inputs, data, weights, outputs, tuple(statistics), layers, first_stream)


def _needed(flat: Flat, bindings: Sequence[Any]) -> list[Any]:
    """Return the bindings that depend only on data and constants and that others read."""
    values = {b.var: b for b in flat.bindings if b.var in flat.anywhere}
    needed: set[Any] = set()
    waiting = [v for b in bindings for v in variables(b.value)]
    while waiting:
        var = waiting.pop()
        if var in values and var not in needed:
            needed.add(var)
            waiting.extend(variables(values[var].value))
    return [b for b in values.values() if b.var in needed]


def _layers(bindings: Sequence[Any], policies: Policies) -> tuple[Layer, ...]:
    calls = [
        (str(b.value.op.name_hint), b)
        for b in bindings
        if isinstance(b.value, ir.Call) and isinstance(b.value.op, ir.GlobalVar)
    ]
    return tuple(
        Layer(name, str(b.var.name), tuple(b.value.args), policies.next(name)) for name, b in calls
    )


def _shared(
    fn: relax.Function,
    number: int,
    functions: NamedFunctions,
    policies: tuple[str, ...],
    stage_functions: dict[Any, list[ir.GlobalVar]],
) -> ir.GlobalVar:
    """Return the function, or an equal function with equal policies of its calls."""
    key = (int(tvm_ffi.structural_hash(fn, map_free_vars=True)), policies)
    for gv in stage_functions.get(key, ()):
        if tvm_ffi.structural_equal(functions.of[str(gv.name_hint)], fn, map_free_vars=True):
            return gv
    gv = functions.add(f"{STAGE}{number}", fn)
    stage_functions.setdefault(key, []).append(gv)
    return gv

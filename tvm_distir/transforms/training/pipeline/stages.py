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
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.analysis import dependencies
from tvm_distir.core.plan import Recomputation
from tvm_distir.core.rewriting import callee_of, substitute, tuple_of, variables
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions, private_function
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
    args: tuple[Expr, ...]
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
    activations: tuple[Var, ...]
    data: tuple[Var, ...]
    weights: tuple[Var, ...]
    outputs: tuple[Var, ...]
    statistics: tuple[Var, ...]
    layers: tuple[Layer, ...]
    first_stream: int = 0


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
    cutter, first, inputs = _Cutter(flat, functions, recompute), 0, tuple[Any, ...]()
    result: list[ModelStage] = []
    for number, end in enumerate(split_stages(flat, functions, stages, names)):
        bindings = [b for b in flat.bindings[first : end + 1] if b.var not in flat.anywhere]
        outputs = tuple(flat.live[end]) or (flat.loss,)
        result.append(cutter.stage(number, bindings, inputs, outputs))
        # the outputs of a stage are the inputs of the next, in the same order
        first, inputs = end + 1, outputs
    return result


class _Cutter:
    """Writer of the functions of stages."""

    def __init__(self, flat: Flat, functions: NamedFunctions, recompute: Recomputation) -> None:
        self.flat, self.functions, self.recompute = flat, functions, recompute
        self._calls: Counter[str] = Counter()
        self._known: dict[Any, list[ir.GlobalVar]] = {}

    def stage(
        self, number: int, computed: list[Any], inputs: tuple[Any, ...], outputs: tuple[Any, ...]
    ) -> ModelStage:
        """Write the function of a stage with its own bindings, and those that it needs besides."""
        flat = self.flat
        bindings = [*self._needed(computed), *computed]
        first_stream, bindings = from_first_stream(bindings, flat.stream)
        inside = {b.var for b in bindings}
        read = dict.fromkeys(
            v for b in bindings for v in variables(b.value) if v not in inside and v not in inputs
        )
        data = tuple(v for v in read if v not in flat.weights)
        weights = tuple(v for v in read if v in flat.weights)
        env = {v: relax.Var(str(v.name), v.ty) for v in inputs}  # they were of a dataflow block
        inner = [relax.VarBinding(b.var, substitute(b.value, env)) for b in bindings]
        statistics = {flat.statistics[b.var]: b.var for b in computed if b.var in flat.statistics}
        results = [env.get(v, v) for v in (*outputs, *statistics.values())]
        result = results[0] if len(results) == 1 else tuple_of(results)
        fn = private_function(f"{STAGE}{number}", [*env.values(), *data, *weights], inner, result)
        layers = tuple(map(self._layer, (b for b in computed if callee_of(b.value) is not None)))
        gv = self._shared(fn, number, tuple(layer.policy for layer in layers))
        kinds = data, weights, outputs, tuple(statistics)
        return ModelStage(gv, inputs, *kinds, layers, first_stream)

    def _needed(self, bindings: Sequence[Binding]) -> list[Any]:
        """Return the bindings that depend only on data and constants and that others read."""
        values = [b for b in self.flat.bindings if b.var in self.flat.anywhere]
        needed = dependencies((v for b in bindings for v in variables(b.value)), values)
        return [b for b in values if b.var in needed]

    def _layer(self, binding: Binding) -> Layer:
        """Describe the next call of a function, with the policy that it has by its number."""
        name = str(binding.value.op.name_hint)
        policy = self.recompute.of(name).of_call(self._calls[name])
        self._calls[name] += 1
        return Layer(name, str(binding.var.name), tuple(binding.value.args), policy)

    def _shared(self, fn: relax.Function, number: int, policies: tuple[str, ...]) -> ir.GlobalVar:
        """Return the function, or an equal function with equal policies of its calls."""
        key = (int(tvm_ffi.structural_hash(fn, map_free_vars=True)), policies)
        for gv in self._known.get(key, ()):
            known = self.functions.of[str(gv.name_hint)]
            if tvm_ffi.structural_equal(known, fn, map_free_vars=True):
                return gv
        gv = self.functions.add(f"{STAGE}{number}", fn)
        self._known.setdefault(key, []).append(gv)
        return gv

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write ``main`` of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax import Binding, Expr, Var
from tvm.relax.op import add

from tvm_distir.core.ir.attributes import (
    INPUTS_ATTR,
    NUM_INPUT_ATTR,
    PARAM_NAMES_ATTR,
    TRAINING_ATTR,
)
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions, without_unread
from tvm_distir.transforms.training.autodiff.reverse import active, reverse
from tvm_distir.transforms.training.autodiff.rules.batch_norms import in_training, is_batch_norm
from tvm_distir.transforms.training.autodiff.tape import Tape
from tvm_distir.transforms.training.autodiff.weight_regather import WeightRegather
from tvm_distir.transforms.training.optimizers.protocol import RATE, STEP
from tvm_distir.transforms.training.recompute.pairs import Differentiator, pure_bindings
from tvm_distir.transforms.training.recompute.times import ValueTimes

from .dropouts import DROPOUT, SEEDS
from .parameters import Parameters, check_names
from .recipe import Recipe
from .scaling import Scaling
from .updates import UpdatedWeight, Updates, grouped, updated_name

STEPS = 1000
"""A step counter is below it, where it is drawn."""


class TrainStepWriter:
    """Writer of the step of a forward function.

    Parameters
    ----------
    params : Parameters
        The parameters of the forward function.
    recipe : Recipe
    functions : NamedFunctions
        The functions of the model; those of the step are added.
    """

    def __init__(self, params: Parameters, recipe: Recipe, functions: NamedFunctions) -> None:
        self.params, self.recipe, self.functions = params, recipe, functions
        self.bindings = pure_bindings(params.forward, "main")
        self.builder = relax.BlockBuilder()
        self.inputs = list(params.data)
        scalar_type = relax.TensorType([], "float32")
        self.rate = relax.Var(RATE, scalar_type) if recipe.rate_input else None
        if self.rate is not None:
            self.inputs.append((RATE, self.rate))
        self.weights = [self._with_states(UpdatedWeight(name, var)) for name, var in params.trained]
        self.scaling = Scaling(recipe)
        self.counters = list(self.scaling.params)
        self.step: Any = None
        if recipe.optimizer.counts:
            self.step = relax.Var(STEP, relax.TensorType([], "int64"))
            self.counters.insert(0, (STEP, self.step))
        times = ValueTimes(functions, recipe.system)
        self.pairs = Differentiator(functions, recipe.policies, times, recipe.recomputed_ops)
        self.tape = Tape(
            self.builder, self.pairs, active(self.bindings, [w.var for w in self.weights])
        )
        self.statistics: dict[Var, Expr] = {}
        self.updated: dict[str, str] = {}
        self.regathered: dict[str, str] = {}
        self.gradients: dict[str, str] = {}

    def _with_states(self, weight: UpdatedWeight) -> UpdatedWeight:
        for slot, ty in self.recipe.optimizer.states(weight.var.ty).items():
            weight.names.append(f"{weight.name}.{slot}")
            weight.states.append(relax.Var(weight.names[-1], ty))
        return weight

    def run(self) -> relax.Function:
        """Return the step, and add the functions that it calls to those of the model."""
        named = [
            *self.inputs,
            *self.params.others,
            *((n, s) for w in self.weights for n, s in zip(w.names, w.states, strict=True)),
            *self.counters,
        ]
        check_names(name for name, _ in named)
        builder = self.builder
        with builder.function("main", [var for _, var in named]):
            with builder.dataflow():
                outputs = self._body()
            builder.emit_func_output(relax.Tuple(outputs))
        fn = without_unread(builder.get()["main"])
        bound = {str(b.var.name) for block in fn.body.blocks for b in block.bindings[:]}
        inputs = [name for name, _ in self.inputs]
        states = {w.name: list(w.names) for w in self.weights if w.names}
        sampled = ((DROPOUT, self.params.dropout, SEEDS), (STEP, self.step, STEPS))
        counters = {name: most for name, var, most in sampled if var is not None}
        attrs = {
            PARAM_NAMES_ATTR: [name for name, _ in named],
            INPUTS_ATTR: inputs,
            NUM_INPUT_ATTR: len(inputs),
            TRAINING_ATTR: {
                "updated": self.updated,
                "states": states,
                "again": {w: mark for w, mark in self.regathered.items() if mark in bound},
                "gradients": self.gradients,
                **({"counters": counters} if counters else {}),
                **({"recompute": self.pairs.policies} if self.pairs.policies else {}),
            },
        }
        return fn.with_attr(attrs)

    def _body(self) -> list[Var]:
        """Emit everything; return the loss and the updates in the order of the parameters."""
        weight_vars = [w.var for w in self.weights]
        tape = self.tape
        for binding in self.bindings:
            self._forward(tape, binding)
        output = tape.replaced(self.params.forward.body.body)
        loss = tape.output(self.params.objective.write(tape, output), "loss")
        regatherer = (
            WeightRegather(self.builder, weight_vars, tape.bindings) if self.recipe.reread else None
        )
        seed = self.scaling.seed(loss)
        gradients = reverse(
            self.builder, tape.bindings, loss, weight_vars, regatherer, tape.calls, seed
        )
        marks = regatherer.marks if regatherer is not None else {}
        self.regathered = {w.name: str(marks[w.var].name) for w in self.weights if w.var in marks}
        named = zip(self.weights, gradients, strict=True)
        self.gradients = {weight.name: str(gradient.name) for weight, gradient in named}
        return [loss, *self._updates(tape, gradients)]

    def _forward(self, tape: Tape, binding: Binding) -> None:
        """Emit a binding of the model."""
        value = tape.replaced(binding.value)
        normed = is_batch_norm(value)
        var = tape.add(binding.var, in_training(value) if normed else value)
        for number, statistic in ((1, value.args[3]), (2, value.args[4])) if normed else ():
            if statistic in self.params.running:
                self.statistics[statistic] = relax.TupleGetItem(var, number)

    def _updates(self, tape: Tape, gradients: Sequence[Var]) -> list[Var]:
        """Return the new weights in the order of the parameters, then states, then counters."""
        builder = self.builder
        updates = Updates(builder, self.recipe.optimizer, self.functions)
        rows = grouped(builder, tape.calls.values(), self.weights, gradients)
        squares = updates.squares(rows) if self.scaling.looks_at_gradients else None
        shared, counters = self.scaling.shared(builder, squares, self.step, self.rate)
        new = updates.write(rows, shared)
        if self.params.dropout is not None:
            new[DROPOUT] = add(self.params.dropout, relax.const(1, "int64"))
        others = self.params.others
        new.update({n: self.statistics[v] for n, v in others if v in self.statistics})
        counters += self.scaling.updated(builder)
        out = [self._named(name, new[name]) for name, _ in others if name in new]
        out += [self._named(name, new[name]) for w in self.weights for name in w.names]
        return [*out, *(self._named(name, value) for name, value in counters)]

    def _named(self, name: str, value: Expr) -> Var:
        new_name = updated_name(name)
        is_named = isinstance(value, Var) and str(value.name) == new_name
        var = value if is_named else self.builder.emit_output(value, new_name)
        self.updated[name] = str(var.name)
        return var

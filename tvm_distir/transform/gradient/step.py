# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``train_step``: a forward model becomes one step of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.op import add, astype

from ...errors import ModelError
from ...ir import (
    INPUTS_ATTR,
    NUM_INPUT_ATTR,
    PARAM_NAMES_ATTR,
    TRAINING_ATTR,
    param_names,
    tensor_type,
)
from ...plan import data_positions, plain_name
from .batch_norms import in_training, is_batch_norm, running_statistics, without_statistics
from .functions import Functions
from .losses import is_trained_on
from .optimizers import RATE, STEP
from .pairs import Pairs, dataflow_bindings
from .recipe import Recipe, recipe_of
from .reread import Reread
from .reverse import active, reverse
from .scaling import Scaling
from .tape import Tape
from .updates import UPDATED_SUFFIX, Updates, Weight

TARGETS = "targets"
"""Name of the parameter that holds what the output should have been."""

HALF = ("float16", "bfloat16")
"""Types whose sums over many samples need a wider one."""


def train_step(
    mod: ir.IRModule,
    loss: str = "cross_entropy",
    optimizer: str = "sgd",
    reread: bool = False,
    *,
    clip: float = 0.0,
    loss_scale: float | str = 1.0,
    master: bool = False,
    rate_input: bool = False,
    frozen: Sequence[str] = (),
    **options: float,
) -> ir.IRModule:
    """Make a step of training out of a model.

    The gradient of a private function is a private function: ``layer`` becomes
    ``layer_forward`` and ``layer_backward``, and what one call makes gradients of ``layer_update``
    updates. Every float parameter that is no data is a weight and gets a gradient, unless it is
    frozen. Functions with batch norms are inlined; these work on the statistics of the batch and
    update their running ones.

    Parameters
    ----------
    mod : IRModule
        At level 1, with ``main(*data, *weights) -> output``; it and the private functions on
        the way are one dataflow block each. The output is one tensor: logits (samples, ...,
        classes) for ``cross_entropy``, any shape for ``mse``; of half precision, the loss is
        computed in float32.
    loss : str
        ``cross_entropy`` (mean over all samples; targets are int32 (samples, ...)) or ``mse``
        (mean of squares; targets are like the output).
    optimizer : str
        ``sgd``, ``adam``, ``adamw``, ``lion``, or one that another package offers.
    reread : bool
        The backward part reads the weights anew (as values that end in ``_again``, which plans
        place as the weights). Where weights of ``main`` are stored in shards, they are then
        gathered once for either part, and not held in between (ZeRO stage 3).
    clip : float
        Most that the norm of all gradients together may be, larger ones are scaled down; 0: any.
    loss_scale : float or str
        What the loss is multiplied with for the backward part, so that gradients of half precision
        do not vanish; ``dynamic``: an input that halves after a step whose gradients overflow,
        which then changes no weight, and doubles after 2000 that do not.
    master : bool
        Weights of half precision have a float32 copy, a state, on which the optimizer works.
    rate_input : bool
        The learning rate is an input of the step, ``rate``, after the targets.
    frozen : sequence of str
        Patterns of weights that are not trained.
    **options : float
        Of the optimizer, see :mod:`.optimizers`.

    Returns
    -------
    IRModule
        ``main(*data, targets, [rate], *weights, *states, *counters) -> (loss, *new weights,
        *new states, *new counters)``, in the order of the parameters. States of a weight ``w`` are
        called ``w.momentum``, or ``w.m`` and ``w.v``, with ``w.master`` before; counters are
        ``step`` (of Adam) and ``loss_scale`` and ``scale_steps`` (of a dynamic scale). Statistics
        of batch norms count as weights. The attribute ``dist.training`` says which value updates
        which parameter, and which is the gradient of a weight, so that strategies place them
        alike.

    Raises
    ------
    ModelError
        DIST0350 an op has no gradient; DIST0351 no such loss or optimizer, a number out of range,
        a pattern that no weight fits, or the model's form is another.
    """
    recipe = recipe_of(
        loss,
        optimizer,
        options,
        reread=reread,
        clip=clip,
        loss_scale=loss_scale,
        master=master,
        rate_input=rate_input,
        frozen=frozen,
    )
    functions = Functions(without_statistics(mod))
    found = functions.of.get("main")
    if not isinstance(found, relax.Function):
        raise _unfit("there is no function main")
    names = param_names(found)
    for taken in (TARGETS, *([RATE] if rate_input else [])):
        if plain_name(taken) in map(plain_name, names):
            raise _unfit(f'a parameter is called "{taken}": the model is a training step already')
    forward = relax.utils.copy_with_new_vars(found)
    if not is_trained_on(forward.ret_ty):
        raise _unfit(f"main returns {forward.ret_ty}, not one tensor of floats")
    step = _Step(forward, names, data_positions(found), recipe, functions)
    return functions.module(step.run(), mod.attrs)


def _unfit(what: str) -> ModelError:
    return ModelError(
        "DIST0351",
        what,
        place="train_step",
        remedy="Give a forward model: main(*data, *weights) with one tensor as its result.",
    )


class _Step:
    """Writes the step of one forward function."""

    def __init__(
        self,
        forward: relax.Function,
        names: Sequence[str],
        data: Sequence[int],
        recipe: Recipe,
        functions: Functions,
    ) -> None:
        self.forward, self.recipe, self.functions = forward, recipe, functions
        self.bindings = dataflow_bindings(forward, "main")
        self.builder = relax.BlockBuilder()
        pairs = list(zip(names, forward.params, strict=True))
        self.data = [pair for i, pair in enumerate(pairs) if i in data]
        self.others = [pair for i, pair in enumerate(pairs) if i not in data]
        targets = recipe.loss.targets(forward.ret_ty)
        self.inputs = [*self.data, (TARGETS, relax.Var(TARGETS, targets))]
        scalar_type = relax.TensorType([], "float32")
        self.rate = relax.Var(RATE, scalar_type) if recipe.rate_input else None
        if self.rate is not None:
            self.inputs.append((RATE, self.rate))
        self.running = running_statistics(forward)
        weights = [(n, v) for n, v in self.others if _is_float(v.ty) and v not in self.running]
        recipe.check_frozen([name for name, _ in weights])
        self.weights = [
            self._with_states(Weight(name, var)) for name, var in weights if recipe.trains(name)
        ]
        if not self.weights:
            raise _unfit("no weight is trained")
        self.scaling = Scaling(recipe)
        self.counters = list(self.scaling.params)
        self.step: Any = None
        if recipe.optimizer.counts:
            self.step = relax.Var(STEP, relax.TensorType([], "int64"))
            self.counters.insert(0, (STEP, self.step))
        self.statistics: dict[Any, Any] = {}
        self.updated: dict[str, str] = {}
        self.again: dict[str, str] = {}
        self.gradients: dict[str, str] = {}

    def _with_states(self, weight: Weight) -> Weight:
        for slot, ty in self.recipe.optimizer.states(weight.var.ty).items():
            weight.names.append(f"{weight.name}.{slot}")
            weight.states.append(relax.Var(weight.names[-1], ty))
        return weight

    def run(self) -> relax.Function:
        """Return the step; the functions that it calls are added to those of the model."""
        named = [
            *self.inputs,
            *self.others,
            *((n, s) for w in self.weights for n, s in zip(w.names, w.states, strict=True)),
            *self.counters,
        ]
        builder = self.builder
        with builder.function("main", [var for _, var in named]):
            with builder.dataflow():
                outputs = self._body()
            builder.emit_func_output(relax.Tuple(outputs))
        fn = builder.get()["main"]
        inputs = [name for name, _ in self.inputs]
        states = {w.name: list(w.names) for w in self.weights if w.names}
        attrs = {
            PARAM_NAMES_ATTR: [name for name, _ in named],
            INPUTS_ATTR: inputs,
            NUM_INPUT_ATTR: len(inputs),
            TRAINING_ATTR: {
                "updated": self.updated,
                "states": states,
                "again": self.again,
                "gradients": self.gradients,
            },
        }
        for key, value in attrs.items():
            fn = fn.with_attr(key, value)
        return fn

    def _body(self) -> list[Any]:
        """Emit all; return the loss and what is updated, in the order of the parameters."""
        wanted = [w.var for w in self.weights]
        tape = Tape(self.builder, Pairs(self.functions), active(self.bindings, wanted))
        for binding in self.bindings:
            self._forward(tape, binding)
        loss = tape.emit(self._loss(tape), "loss")
        reread = Reread(self.builder, wanted, tape.bindings) if self.recipe.reread else None
        gradients = reverse(
            self.builder,
            tape.bindings,
            loss,
            wanted,
            reread=reread,
            calls=tape.calls,
            seed=self.scaling.seed(loss),
        )
        marks = reread.marks if reread is not None else {}
        self.again = {w.name: str(marks[w.var].name) for w in self.weights if w.var in marks}
        pairs = zip(self.weights, gradients, strict=True)
        self.gradients = {weight.name: str(gradient.name) for weight, gradient in pairs}
        return [self.builder.emit_output(loss), *self._updates(tape, gradients)]

    def _loss(self, tape: Tape) -> Any:
        """The loss, not emitted yet; of half precision in float32."""
        output, targets = tape.replaced(self.forward.body.body), self.inputs[len(self.data)][1]
        dtype = str(output.ty.dtype)
        if dtype in HALF:
            output = tape.emit(astype(output, "float32"), "wide_output")
            if str(targets.ty.dtype) == dtype:
                targets = tape.emit(astype(targets, "float32"), "wide_targets")
        return self.recipe.loss.write(tape, output, targets)

    def _forward(self, tape: Tape, binding: Any) -> None:
        """Emit a binding of the model."""
        value = tape.replaced(binding.value)
        normed = is_batch_norm(value)
        var = tape.add(binding.var, in_training(value) if normed else value)
        for number, statistic in ((1, value.args[3]), (2, value.args[4])) if normed else ():
            if statistic in self.running:
                self.statistics[statistic] = relax.TupleGetItem(var, number)

    def _updates(self, tape: Tape, gradients: Sequence[Any]) -> list[Any]:
        """New weights in the order of the parameters, then new states, then the counters."""
        builder, optimizer = self.builder, self.recipe.optimizer
        updates = Updates(builder, optimizer, self.functions, tape.calls.values())
        rows = updates.grouped(self.weights, gradients)
        squares = updates.squares(rows) if self.scaling.looks_at_gradients else None
        shared = self.scaling.shared(builder, squares)
        counters: list[tuple[str, Any]] = []
        if self.step is not None:
            count = builder.emit(add(self.step, relax.const(1, "int64")))
            shared.update(optimizer.begin(builder, builder.emit(astype(count, "float32"))))
            counters.append((STEP, self.scaling.counted(builder, count, self.step)))
        if self.rate is not None:
            shared[RATE] = self.rate
        new = updates.write(rows, shared)
        new.update({n: self.statistics[v] for n, v in self.others if v in self.statistics})
        counters += self.scaling.updated(builder)
        out = [self._named(name, new[name]) for name, _ in self.others if name in new]
        out += [self._named(name, new[name]) for w in self.weights for name in w.names]
        return [*out, *(self._named(name, value) for name, value in counters)]

    def _named(self, name: str, value: Any) -> Any:
        var = self.builder.emit_output(value, plain_name(name) + UPDATED_SUFFIX)
        self.updated[name] = str(var.name)
        return var


def _is_float(ty: Any) -> bool:
    tensor = tensor_type(ty)
    return tensor is not None and "float" in str(tensor.dtype)

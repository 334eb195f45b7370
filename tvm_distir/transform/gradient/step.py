# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``train_step``: a forward model becomes one step of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from ...errors import ModelError
from ...ir import (
    INPUTS_ATTR,
    NUM_INPUT_ATTR,
    PARAM_NAMES_ATTR,
    TRAINING_ATTR,
    is_private,
    param_names,
    relax_functions,
    tensor_type,
)
from ...ir.rewrite import all_bindings, callers_closure
from ...plan import data_positions, plain_name
from ..inline import InlinePrivateFunctions
from .functions import Functions
from .losses import Loss, is_trained_on, loss_named
from .optimizers import STEP, Optimizer, optimizer_named
from .pairs import Pairs, dataflow_bindings
from .reread import Reread
from .reverse import active, reverse
from .tape import Tape
from .updates import UPDATED_SUFFIX, Updates, Weight

TARGETS = "targets"
"""Name of the parameter that holds what the output should have been."""

_BATCH_NORM = "relax.nn.batch_norm"


def train_step(
    mod: ir.IRModule,
    loss: str = "cross_entropy",
    optimizer: str = "sgd",
    reread: bool = False,
    **options: float,
) -> ir.IRModule:
    """Make a step of training out of a model.

    Private functions are inlined. Every float parameter that is no data is a weight and gets a
    gradient; batch norms work on the statistics of the batch and update their running ones.

    Parameters
    ----------
    mod : IRModule
        At level 1, with ``main(*data, *weights) -> output`` of one dataflow block; the output is
        one tensor: logits (samples, ..., classes) for ``cross_entropy``, any shape for ``mse``.
    loss : str
        ``cross_entropy`` (mean over all samples; targets are int32 (samples, ...)) or ``mse``
        (mean of squares; targets are like the output).
    optimizer : str
        ``sgd`` or ``adam``.
    reread : bool
        The backward part reads the weights anew (as values that end in ``_again``, which plans
        place as the weights). Where weights are stored in shards, they are then gathered once
        for either part, and not held in between (ZeRO stage 3); otherwise it changes nothing.
    **options : float
        Of the optimizer, see :class:`.optimizers.Sgd` and :class:`.optimizers.Adam`.

    Returns
    -------
    IRModule
        ``main(*data, targets, *weights, *states) -> (loss, *new weights, *new states)``, weights
        and states in the order of the parameters. States of a weight ``w`` are called
        ``w.momentum``, or ``w.m`` and ``w.v``; Adam counts the steps done in ``step``, which comes
        last. Statistics of batch norms count as weights. The attribute ``dist.training`` says
        which value updates which parameter, and which is the gradient of a weight, so that
        strategies place them alike.

    Raises
    ------
    ModelError
        DIST0350 an op has no gradient; DIST0351 no such loss or optimizer, or the model's form is
        another.
    """
    chosen, method = loss_named(loss), optimizer_named(optimizer, options)
    functions = Functions(_without_statistics(mod))
    found = functions.of.get("main")
    if not isinstance(found, relax.Function):
        raise _unfit("there is no function main")
    names = param_names(found)
    if plain_name(TARGETS) in map(plain_name, names):
        raise _unfit(f'a parameter is called "{TARGETS}": the model is a training step already')
    forward = relax.utils.copy_with_new_vars(found)
    if not is_trained_on(forward.ret_ty):
        raise _unfit(f"main returns {forward.ret_ty}, not one tensor of floats")
    data = data_positions(found)
    step = _Step(forward, names, data, chosen, method, reread, functions)
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
        loss: Loss,
        optimizer: Optimizer,
        reread: bool,
        functions: Functions,
    ) -> None:
        self.forward, self.loss, self.optimizer = forward, loss, optimizer
        self.reread, self.functions = reread, functions
        self.bindings = dataflow_bindings(forward, "main")
        self.builder = relax.BlockBuilder()
        pairs = list(zip(names, forward.params, strict=True))
        self.data = [pair for i, pair in enumerate(pairs) if i in data]
        self.others = [pair for i, pair in enumerate(pairs) if i not in data]
        self.targets = relax.Var(TARGETS, loss.targets(forward.ret_ty))
        self.running = _running_statistics(forward)
        self.weights = [
            self._with_states(Weight(name, var))
            for name, var in self.others
            if _is_float(var.ty) and var not in self.running
        ]
        self.step = relax.Var(STEP, relax.TensorType([], "int64")) if optimizer.counts else None
        self.statistics: dict[Any, Any] = {}
        self.updated: dict[str, str] = {}
        self.again: dict[str, str] = {}
        self.gradients: dict[str, str] = {}

    def _with_states(self, weight: Weight) -> Weight:
        for slot in self.optimizer.slots:
            weight.names.append(f"{weight.name}.{slot}")
            weight.states.append(relax.Var(weight.names[-1], weight.var.ty))
        return weight

    def run(self) -> relax.Function:
        """Return the step; the functions that it calls are added to those of the model."""
        named = [
            *self.data,
            (TARGETS, self.targets),
            *self.others,
            *((n, s) for w in self.weights for n, s in zip(w.names, w.states, strict=True)),
            *([(STEP, self.step)] if self.step is not None else []),
        ]
        builder = self.builder
        with builder.function("main", [var for _, var in named]):
            with builder.dataflow():
                outputs = self._body()
            builder.emit_func_output(relax.Tuple(outputs))
        fn = builder.get()["main"]
        inputs = [name for name, _ in self.data] + [TARGETS]
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
        value = self.loss.write(tape, tape.replaced(self.forward.body.body), self.targets)
        loss = tape.emit(value, "loss")
        reread = Reread(self.builder, wanted, tape.bindings) if self.reread else None
        gradients = reverse(
            self.builder, tape.bindings, loss, wanted, reread=reread, calls=tape.calls
        )
        marks = reread.marks if reread is not None else {}
        self.again = {w.name: str(marks[w.var].name) for w in self.weights if w.var in marks}
        pairs = zip(self.weights, gradients, strict=True)
        self.gradients = {weight.name: str(gradient.name) for weight, gradient in pairs}
        return [self.builder.emit_output(loss), *self._updates(tape, gradients)]

    def _forward(self, tape: Tape, binding: Any) -> None:
        """Emit a binding of the model."""
        value = tape.replaced(binding.value)
        normed = _is_op(value, _BATCH_NORM)
        var = tape.add(binding.var, _training_batch_norm(value) if normed else value)
        for number, statistic in ((1, value.args[3]), (2, value.args[4])) if normed else ():
            if statistic in self.running:
                self.statistics[statistic] = relax.TupleGetItem(var, number)

    def _updates(self, tape: Tape, gradients: Sequence[Any]) -> list[Any]:
        """New weights in the order of the parameters, then new states, then the step."""
        builder, count = self.builder, None
        shared: tuple[Any, ...] = ()
        if self.step is not None:
            count = builder.emit(relax.op.add(self.step, relax.const(1, "int64")))
            shared = self.optimizer.begin(builder, builder.emit(relax.op.astype(count, "float32")))
        updates = Updates(builder, self.optimizer, self.functions, tape.calls.values())
        new = updates.write(self.weights, gradients, shared)
        new.update({n: self.statistics[v] for n, v in self.others if v in self.statistics})
        out = [self._named(name, new[name]) for name, _ in self.others if name in new]
        out += [self._named(name, new[name]) for w in self.weights for name in w.names]
        return out if count is None else [*out, self._named(STEP, count)]

    def _named(self, name: str, value: Any) -> Any:
        var = self.builder.emit_output(value, plain_name(name) + UPDATED_SUFFIX)
        self.updated[name] = str(var.name)
        return var


def _is_op(call: Any, name: str) -> bool:
    return isinstance(call, ir.Call) and isinstance(call.op, ir.Op) and str(call.op.name) == name


def _is_float(ty: Any) -> bool:
    tensor = tensor_type(ty)
    return tensor is not None and "float" in str(tensor.dtype)


def _running_statistics(fn: relax.Function) -> set[Any]:
    """Parameters that are the running mean or variance of a batch norm."""
    params = set(fn.params)
    return {
        arg
        for block in fn.body.blocks
        for binding in block.bindings
        if _is_op(binding.value, _BATCH_NORM)
        for arg in binding.value.args[3:5]
        if arg in params
    }


def _without_statistics(mod: ir.IRModule) -> ir.IRModule:
    """Inline the functions that hold batch norms: what they update are parameters of ``main``."""
    holders = {
        str(gv.name_hint)
        for gv, fn in mod.functions.items()
        if isinstance(fn, relax.Function)
        and any(_is_op(binding.value, _BATCH_NORM) for binding in all_bindings(fn.body))
    }
    private = {str(gv.name_hint) for gv, fn in relax_functions(mod) if is_private(fn)}
    names = sorted(callers_closure(mod, holders) & private)
    return InlinePrivateFunctions(names)(mod) if names else mod


def _training_batch_norm(call: ir.Call) -> ir.Call:
    """The same batch norm on the statistics of the batch."""
    a = call.attrs
    return relax.op.nn.batch_norm(
        *call.args,
        axis=int(a.axis),
        epsilon=float(a.epsilon),
        center=bool(a.center),
        scale=bool(a.scale),
        momentum=float(a.momentum),
        training=True,
    )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the objective of a step: a loss of the model's output, or a weighted sum of losses.

::

    losses = loss | OUTPUT ":" loss ("," OUTPUT ":" loss)*
    loss   = (NAME of a loss | NAME of a private function) ["*" weight]

An output is named by its variable, or by its number. A function takes the output and its targets;
where no output is named, all outputs, and then its targets, each of which is an input of the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var
from tvm.relax.op import add, astype, multiply

from tvm_distir.core.ir import flat_types, is_private, known_shape, tensor_type
from tvm_distir.core.plan import plain_name
from tvm_distir.core.rewriting import all_bindings, scalar
from tvm_distir.support import ModelError, nearest, parse_float, shortened
from tvm_distir.transforms.step_faults import wrong_argument
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions

from .losses import LOSSES, Emitter, is_trained_on

TARGETS = "targets"
"""Name of the parameter that holds what the output should have been."""

_wrong = partial(wrong_argument, name="loss")

HALF = ("float16", "bfloat16")
"""Types whose sums over many samples need a wider type."""


@dataclass(frozen=True)
class Term:
    """Loss in a sum.

    Attributes
    ----------
    output : str
        Name or number of the output; empty where all is meant.
    loss : str
        The name in :data:`.losses.LOSSES`, or of a function.
    weight : float
    """

    output: str
    loss: str
    weight: float = 1.0


def read_losses(text: str) -> tuple[Term, ...]:
    """Parse ``mse`` or ``logits:cross_entropy,value:mse*0.5`` (ModelError DIST0351)."""
    terms = []
    for part in text.split(","):
        output, colon, rest = part.rpartition(":")
        loss, star, factor = (word.strip() for word in rest.partition("*"))
        weight = parse_float(factor) if star else 1.0
        if not loss or (colon and not output.strip()) or not math.isfinite(weight):
            raise _wrong(
                f'"{shortened(part)}" is not a loss', "Write OUTPUT:LOSS*WEIGHT, as value:mse*0.5."
            )
        terms.append(Term(output.strip(), loss, weight))
    if len(terms) > 1 and not all(term.output for term in terms):
        raise _wrong("one of several losses names no output", "Write OUTPUT:LOSS for each loss.")
    return tuple(terms)


@dataclass(frozen=True)
class _Part:
    """Term over a model's outputs.

    Attributes
    ----------
    numbers : tuple of int
        The outputs that it reads.
    term : Term
    function : GlobalVar or None
    targets : list of Var
    """

    numbers: tuple[int, ...]
    term: Term
    function: Any
    targets: list[Var]


class Objective:
    """Loss of a model.

    Parameters
    ----------
    terms : sequence of Term
    forward : Function
        ``main``.
    functions : NamedFunctions
        The functions of the module.

    Attributes
    ----------
    inputs : list of (str, Var)
        Parameters that it adds to a step.

    Raises
    ------
    ModelError
        DIST0351 no such loss or output, or one of another form.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        forward: relax.Function,
        functions: NamedFunctions,
    ) -> None:
        self.types, self.functions = flat_types(forward.ret_ty), functions
        self.names = _output_names(forward, len(self.types))
        self.inputs: list[tuple[str, Var]] = []
        self.parts = [self._part(term, len(terms)) for term in terms]

    def _part(self, term: Term, count: int) -> _Part:
        numbers = self._numbers(term)
        types = [self.types[i] for i in numbers]
        base = TARGETS if count == 1 else f"{self.names[numbers[0]]}_{TARGETS}"
        if term.loss in LOSSES:
            if len(types) > 1:
                raise _wrong(
                    f'"{term.loss}" requires a single tensor, and main returns {len(types)}',
                    f"Name the outputs: {self.names[0]}:{term.loss},...",
                )
            if not is_trained_on(types[0]):
                raise unfit(f"main returns {types[0]}, not one tensor of floats")
            target_types = [(base, LOSSES[term.loss].targets(types[0]))]
            function = None
        else:
            function, params = self._function(term, types)
            single = len(params) == 1
            target_types = [(base if single else str(p.name), p.ty) for p in params]
        targets = [relax.Var(name, ty) for name, ty in target_types]
        self.inputs += [(str(var.name), var) for var in targets]
        return _Part(numbers, term, function, targets)

    def _numbers(self, term: Term) -> tuple[int, ...]:
        if not term.output:
            return tuple(range(len(self.types)))
        if term.output in self.names:
            return (self.names.index(term.output),)
        if term.output.isdecimal() and int(term.output) < len(self.types):
            return (int(term.output),)
        raise _wrong(
            f'there is no output "{shortened(term.output)}"', nearest(term.output, self.names)
        )

    def _function(self, term: Term, types: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return a function of the module that is a loss, and its target parameters."""
        functions = self.functions.of
        private_names = [
            n for n, f in functions.items() if isinstance(f, relax.Function) and is_private(f)
        ]
        if term.loss not in private_names:
            known = [*LOSSES, *private_names]
            raise _wrong(f'there is no loss "{shortened(term.loss)}"', nearest(term.loss, known))
        fn = functions[term.loss]
        shapes = [known_shape(ty) for ty in types]
        first = [known_shape(p.ty) for p in fn.params[: len(types)]]
        result = tensor_type(fn.ret_ty)
        if first != shapes or result is None or known_shape(fn.ret_ty) != ():
            raise _wrong(
                f"the function {term.loss} does not map main's outputs to a scalar",
                f"Write {term.loss}(output of {types[0]}, targets) -> R.Tensor((), ...).",
            )
        return self.functions.variables[term.loss], list(fn.params[len(types) :])

    def write(self, emitter: Emitter, output: Expr) -> Expr:
        """Return the loss of the model's output, not emitted yet, in float32 for half precision.

        Parameters
        ----------
        emitter : BlockBuilder or Tape
        output : expression
        """
        total: Any = None
        for part in self.parts:
            value = self._term(emitter, part, output)
            if part.term.weight != 1.0:
                value = emitter.emit(value)
                value = multiply(value, scalar(part.term.weight, str(value.ty.dtype)))
            if total is None:
                total = value
                continue
            total, value = emitter.emit(total), emitter.emit(value)
            if value.ty.dtype != total.ty.dtype:
                value = emitter.emit(astype(value, str(total.ty.dtype)))
            total = add(total, value)
        return total

    def _term(self, emitter: Emitter, part: _Part, output: Expr) -> Expr:
        read = [self._output(emitter, output, number) for number in part.numbers]
        if part.function is None:
            (prediction,), (targets,) = read, part.targets
            dtype = str(prediction.ty.dtype)
            if dtype in HALF:
                prediction = emitter.emit(astype(prediction, "float32"), "wide_output")
                if str(targets.ty.dtype) == dtype:
                    targets = emitter.emit(astype(targets, "float32"), "wide_targets")
            return LOSSES[part.term.loss].write(emitter, prediction, targets)
        return ir.Call(part.function, [*read, *part.targets])

    def _output(self, emitter: Emitter, output: Expr, number: int) -> Var:
        """Return an output, a field if the result is a tuple literal."""
        if not isinstance(output.ty, relax.TupleType):
            return output
        if isinstance(output, relax.Tuple):
            return output.fields[number]
        name = "output" if len(self.types) == 1 else self.names[number]
        return emitter.emit(relax.TupleGetItem(output, number), name)


def _output_names(forward: relax.Function, count: int) -> list[str]:
    """Return the names of the returned variables, or numbers if they are no variables."""
    result = forward.body.body
    bound = {b.var: b.value for b in all_bindings(forward.body)}
    while isinstance(result, ir.Var) and isinstance(bound.get(result), ir.Var | relax.Tuple):
        result = bound[result]
    fields = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    if len(fields) != count:
        return [str(i) for i in range(count)]
    named = [isinstance(field, ir.Var) for field in fields]
    return [plain_name(str(f.name)) if v else str(i) for i, (f, v) in enumerate(zip(fields, named))]


def unfit(problem: str) -> ModelError:
    """Return the error about a model that cannot be trained."""
    return wrong_argument(
        problem,
        "Give a forward model: main(*data, *weights) with floats as its results, and a loss for "
        "each output to train on.",
    )

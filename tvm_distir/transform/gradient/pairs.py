# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The gradient of a private function is a private function.

``layer(x, w) -> y`` becomes ``layer_forward(x, w) -> (y, (saved...))`` and
``layer_backward(grad, (saved...), w) -> (x's gradient, w's gradient)``: one pair per function and
per set of parameters whose gradients are asked for, called as often as the function was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax

from ...errors import ModelError
from ...ir import is_private
from ...ir.rewrite import is_pure, op_name, variables
from .functions import Functions, only_read, private_function, tuple_of, written
from .recompute import Recompute
from .reverse import Reverse, active
from .tape import Pair, Roles, Tape

FORWARD_SUFFIX, BACKWARD_SUFFIX = "_forward", "_backward"


class Pairs:
    """Makes the pairs of a module's private functions when they are asked for.

    Parameters
    ----------
    functions : Functions
        New ones are added.
    recompute : Recompute
        What each keeps.
    """

    def __init__(self, functions: Functions, recompute: Recompute) -> None:
        self.functions, self.recompute = functions, recompute
        self._made: dict[tuple[str, Roles], Pair] = {}
        self._open: list[str] = []

    def differentiates(self, call: Any) -> bool:
        """Whether a value is a call of a private Relax function."""
        if not isinstance(call, ir.Call) or not isinstance(call.op, ir.GlobalVar):
            return False
        fn = self.functions.of.get(str(call.op.name_hint))
        return isinstance(fn, relax.Function) and is_private(fn)

    def pair(self, name: str, roles: Roles) -> Pair:
        """Return the pair of a function for the gradients that are asked for.

        Raises
        ------
        ModelError
            DIST0350 an op in it has no gradient; DIST0351 its form is another.
        """
        if (name, roles) not in self._made:
            if name in self._open:
                raise _unfit(name, "it calls itself")
            self._open.append(name)
            self._made[name, roles] = self._make(name, roles)
            self._open.pop()
        return self._made[name, roles]

    def _make(self, name: str, roles: Roles) -> Pair:
        fn = relax.utils.copy_with_new_vars(self.functions.of[name])
        params, bindings = list(fn.params), pure_bindings(fn, name)
        given = tuple(i for i, asked in enumerate(roles) if asked)
        grad = relax.Var("grad", fn.ret_ty)
        forward: list[Any] = []

        def write(builder: relax.BlockBuilder) -> tuple[Any, list[Any]]:
            tape = Tape(builder, self, active(bindings, [params[i] for i in given]))
            for binding in bindings:
                tape.add(binding.var, tape.replaced(binding.value))
            forward.extend(tape.bindings[-1:])
            result = tape.replaced(fn.body.body)
            live = active(tape.bindings, [params[i] for i in given])
            work = Reverse(builder, live, name, calls=tape.calls)
            work.give(result, grad)
            work.run(tape.bindings)
            return result, [work.total(params[i]) for i in given]

        emitted, (result, gradients) = written([*params, grad], write)
        cut = _position(emitted, forward[0].var) + 1 if forward else 0
        return self._write(
            name, params, given, grad, (emitted[:cut], emitted[cut:]), result, gradients
        )

    def _write(
        self,
        name: str,
        params: list[Any],
        given: tuple[int, ...],
        grad: Any,
        parts: tuple[list[Any], list[Any]],
        result: Any,
        gradients: list[Any],
    ) -> Pair:
        """Write both functions."""
        before, after = parts[0], only_read(parts[1], gradients)
        read = [v for b in after for v in variables(b.value)]
        read += [v for gradient in gradients for v in variables(gradient)]
        kept, again = self.recompute.of(name)(before, read, params)
        body = [*again, *after]
        used = {*read, *(v for b in again for v in variables(b.value))}
        needed = tuple(i for i, param in enumerate(params) if param in used)
        saved = relax.Var("saved", relax.TupleType([v.ty for v in kept]))
        opened = [relax.VarBinding(v, relax.TupleGetItem(saved, k)) for k, v in enumerate(kept)]
        first = [grad, saved] if kept else [grad]
        backward = private_function(
            name, [*first, *(params[i] for i in needed)], [*opened, *body], tuple_of(gradients)
        )
        forward = self.functions.variables[name]
        if kept:
            both = private_function(name, params, before, tuple_of([result, tuple_of(kept)]))
            forward = self.functions.add(name + FORWARD_SUFFIX, both)
        return Pair(
            name,
            forward,
            self.functions.add(name + BACKWARD_SUFFIX, backward),
            bool(kept),
            needed,
            given,
            tuple(str(param.name) for param in params),
        )


def pure_bindings(fn: relax.Function, name: str) -> list[Any]:
    """Return the bindings of a function without branches, casts and effects.

    Raises
    ------
    ModelError
        DIST0351 names the first binding that is one of these.
    """
    found = []
    for block in fn.body.blocks:
        for binding in block.bindings:
            what = None
            if isinstance(binding, relax.MatchCast):
                what = "is a match_cast: bind the symbolic dims first"
            elif isinstance(binding.value, relax.If):
                what = "is a branch, which has no gradient"
            elif not is_pure(binding.value):
                what = f"has effects ({op_name(binding.value)})"
            if what is not None:
                raise _unfit(name, f"{binding.var.name} {what}")
            found.append(binding)
    return found


def _position(bindings: Sequence[Any], var: Any) -> int:
    return next(i for i, binding in enumerate(bindings) if binding.var.same_as(var))


def _unfit(name: str, what: str) -> ModelError:
    return ModelError(
        "DIST0351",
        what,
        place=name,
        remedy="Give functions of pure calls alone.",
    )

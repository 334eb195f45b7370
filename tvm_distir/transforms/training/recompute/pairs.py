# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Differentiate private functions into private functions.

``layer(x, w) -> y`` becomes ``layer_forward(x, w) -> (y, (saved...))`` and
``layer_backward(grad, (saved...), w) -> (x's gradient, w's gradient)``: a pair per function and
per set of parameters whose gradients are requested, called as often as the function was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tvm import relax
from tvm.relax import Binding, BlockBuilder, Expr, Var

from tvm_distir.core.ir import known_shape
from tvm_distir.core.plan import ATTENTION, CHECKPOINT, MEGATRON, NONE, Recomputation, plain_name
from tvm_distir.core.rewriting import op_name, tuple_of, variables
from tvm_distir.core.rewriting.native import is_pure
from tvm_distir.support import ModelError, Steps, memoized_steps, unrolled, warn
from tvm_distir.transforms.training.autodiff.function_table import (
    NamedFunctions,
    only_read,
    private_function,
    write_function,
)
from tvm_distir.transforms.training.autodiff.reverse import Reverse, active
from tvm_distir.transforms.training.autodiff.rules.masks import MaskKernels
from tvm_distir.transforms.training.autodiff.tape import (
    CallGradient,
    Differentiated,
    ForwardBackward,
    Tape,
    differentiated_of,
)

from .checkpoints import checkpointed
from .drafts import DraftPair, without_deep_tuples
from .frontier import Frontier
from .narrow import keeping_narrow, saved_operands
from .policies import kept_by
from .times import ValueTimes

FORWARD_SUFFIX, BACKWARD_SUFFIX = "_forward", "_backward"
SCORE_DIMS = 4
"""Dims of the weights of attention: batch, heads, rows, columns."""


class Differentiator:
    """Differentiator of a module's private functions on demand.

    Parameters
    ----------
    functions : NamedFunctions
        New ones are added.
    recompute : Recomputation
        The policy of the calls of each function.
    times : ValueTimes
        The times of recomputing values.
    recomputed_ops : collection of str
        Ops that kernels of the backward pass compute again, see :func:`.narrow.saved_operands`.

    Attributes
    ----------
    leading : dict of str to int
        Functions of whose results only so many, the first, get gradients.
    inside : dict of str to dict of str to str
        The functions in which calls have policies by themselves, by the names of the calls' values.
    """

    def __init__(
        self,
        functions: NamedFunctions,
        recompute: Recomputation,
        times: ValueTimes,
        recomputed_ops: Collection[str] = (),
    ) -> None:
        self.functions, self.recompute, self.times = functions, recompute, times
        self._recomputed_ops = recomputed_ops
        self._masks = MaskKernels(functions)
        self._drafts: dict[tuple[str, Differentiated], DraftPair] = {}
        self.leading: dict[str, int] = {}
        self.inside: dict[str, Mapping[str, str]] = {}
        self._open: list[str] = []
        self._calls: Counter[str] = Counter()

    @property
    def policies(self) -> dict[str, str]:
        """Return the policies that recompute something, by function."""
        texts = {
            name: self.recompute.of(name).text for name in sorted({n for n, _ in self._drafts})
        }
        return {name: text for name, text in texts.items() if text != NONE}

    def differentiates(self, call: Expr) -> bool:
        """Return whether a value is a call of a private Relax function."""
        return self.functions.called_by(call) is not None

    def pair(self, name: str, flags: Differentiated, label: str) -> ForwardBackward:
        """Return the pair for the next call of a function, for the requested gradients.

        ``label``: name of the call's value.

        Raises
        ------
        ModelError
            DIST0350 an op in it has no gradient; DIST0351 its form is another.
        """
        number = 0
        if not self._open:  # a call of main
            number = self._calls[name]
            self._calls[name] += 1
        return self.pair_with(name, flags, self._policy(name, label, number))

    def pair_with(self, name: str, flags: Differentiated, policy: str) -> ForwardBackward:
        """Return the pair of a function under a policy; it raises as :meth:`pair` does."""
        return unrolled(self._pair_with(name, flags, policy))

    def draft(self, name: str, flags: Differentiated) -> DraftPair:
        """Return both passes of a function; it raises as :meth:`pair` does."""
        return unrolled(self._draft(name, flags))

    def _policy(self, name: str, label: str, number: int = 0) -> str:
        policy = self.recompute.of(name).of_call(number)
        return self.inside.get(self._open[-1], {}).get(label, policy) if self._open else policy

    @memoized_steps
    def _pair_with(self, name: str, flags: Differentiated, policy: str) -> Steps[ForwardBackward]:
        if policy == CHECKPOINT:
            inner = yield self._pair_with(name, flags, NONE)
            return checkpointed(inner, self.functions) if inner.saves else inner
        return self._written(name, flags, policy, (yield self._draft(name, flags)))

    def _draft(self, name: str, flags: Differentiated) -> Steps[DraftPair]:
        """Write both passes of a function, after the pairs of all that it calls."""
        if (name, flags) not in self._drafts:
            if name in self._open:
                raise _unfit(name, "it is recursive")
            self._open.append(name)
            for callee, differentiated_inside, label in self._calls_in(name, flags):
                yield self._pair_with(callee, differentiated_inside, self._policy(callee, label))
            self._drafts[name, flags] = self._drafted(name, flags)
            self._open.pop()
        return self._drafts[name, flags]

    def _calls_in(
        self, name: str, flags: Differentiated
    ) -> Iterator[tuple[str, Differentiated, str]]:
        """Yield the calls that a function's tape replaces: function, flags and name of each."""
        fn = self.functions.of[name]
        bindings = pure_bindings(fn, name)
        targets = [param for param, is_active in zip(fn.params, flags, strict=True) if is_active]
        live = active(bindings, targets)
        for binding in bindings:
            call, label = binding.value, str(binding.var.name)
            if binding.var in live and self.differentiates(call):
                yield str(call.op.name_hint), differentiated_of(call, live), label

    def _drafted(self, name: str, flags: Differentiated) -> DraftPair:
        fn = relax.utils.copy_with_new_vars(self.functions.of[name])
        params, bindings = list(fn.params), pure_bindings(fn, name)
        differentiated = tuple(i for i, is_active in enumerate(flags) if is_active)
        grad = relax.Var("grad", self._leading(name, fn.body.body).ty)
        forward: list[Var] = []

        def write(builder: BlockBuilder) -> tuple[Expr, list[Var], tuple[CallGradient, ...]]:
            tape = Tape(builder, self, active(bindings, [params[i] for i in differentiated]))
            for binding in bindings:
                tape.add(binding.var, tape.replaced(binding.value))
            forward.extend(binding.var for binding in tape.bindings[-1:])
            forward.extend(call.saved for call in tape.calls.values() if call.saved is not None)
            result = tape.replaced(fn.body.body)
            live = active(tape.bindings, [params[i] for i in differentiated])
            work = Reverse(builder, live, name, calls=tape.calls)
            work.give(self._leading(name, result), grad)
            work.run(tape.bindings)
            calls = tuple(call for call in tape.calls.values() if call.back is not None)
            return result, [work.total(params[i]) for i in differentiated], calls

        emitted, (result, gradients, calls) = write_function([*params, grad], write)
        last = [i for i, binding in enumerate(emitted, 1) if binding.var in set(forward)]
        cut = max(last, default=0)
        after = only_read(emitted[cut:], gradients)
        read = [v for b in after for v in variables(b.value)]
        read += [v for gradient in gradients for v in variables(gradient)]
        before = emitted[:cut]
        operands = saved_operands(before, after, read, self._recomputed_ops)
        choices = Frontier(before, read, self.times, operands)
        return DraftPair(
            params, differentiated, before, after, grad, result, read, gradients, choices, calls
        )

    def _leading(self, name: str, result: Expr) -> Expr:
        """Return the fields of a function's result that get gradients."""
        count = self.leading.get(name)
        if count is None:
            return result
        return result.fields[0] if count == 1 else tuple_of(result.fields[:count])

    def _written(
        self, name: str, flags: Differentiated, policy: str, draft: DraftPair
    ) -> ForwardBackward:
        """Write both functions."""
        params, before, after, read = draft.params, draft.before, draft.after, draft.read
        if policy == MEGATRON:
            before, after, stash, recomputed, read = keeping_narrow(
                before, after, read, params, self._masks
            )
        else:
            stash, recomputed = kept_by(policy, params, draft.frontier)
        if policy == ATTENTION:
            _warn_of_weights(name, before, read)
        body = [*recomputed, *after]
        used = {*read, *(v for b in recomputed for v in variables(b.value))}
        needed = tuple(i for i, param in enumerate(params) if param in used)
        stash, fields_of = without_deep_tuples(stash)
        before = [*before, *(binding for fields in fields_of.values() for binding in fields)]
        saved = relax.Var("saved", relax.TupleType([v.ty for v in stash]))
        opened = [relax.VarBinding(v, relax.TupleGetItem(saved, k)) for k, v in enumerate(stash)]
        opened += [
            relax.VarBinding(stored, tuple_of([field.var for field in fields]))
            for stored, fields in fields_of.items()
        ]
        first = [draft.grad, saved] if stash else [draft.grad]
        operands = [*first, *(params[i] for i in needed)]
        backward = private_function(name, operands, [*opened, *body], tuple_of(draft.gradients))
        is_single = policy == NONE or len(self.recompute.of(name).parts) == 1
        suffix = "" if is_single else f"_{plain_name(policy)}"
        forward = self.functions.variables[name]
        if stash:
            both = private_function(name, params, before, tuple_of([draft.result, tuple_of(stash)]))
            forward = self.functions.add(name + FORWARD_SUFFIX + suffix, both)
        back = self.functions.add(name + BACKWARD_SUFFIX + suffix, backward)
        titles = tuple(str(param.name) for param in params)
        return ForwardBackward(name, forward, back, bool(stash), needed, draft.given, titles, flags)


def _warn_of_weights(name: str, before: Sequence[Any], read: Sequence[Any]) -> None:
    """Warn of weights over positions that are stored: what reads them is no product."""
    softmaxes = {b.var for b in before if op_name(b.value) == "nn.softmax"}.intersection(read)
    stored = [str(v.name) for v in softmaxes if len(known_shape(v.ty) or ()) == SCORE_DIMS]
    if stored:
        warn(
            f"{name}: the weights of attention {', '.join(sorted(stored))} are stored, although "
            "recompute=attention is requested: no product reads them, a dropout may",
            stacklevel=2,
        )


def pure_bindings(fn: relax.Function, name: str) -> list[Binding]:
    """Return the bindings of a function without casts and effects.

    Raises
    ------
    ModelError
        DIST0351 names the first binding that is one of these.
    """
    bindings = []
    for block in fn.body.blocks:
        for binding in block.bindings:
            problem = None
            if isinstance(binding, relax.MatchCast):
                problem = "is a match_cast: bind the symbolic dims first"
            elif not is_pure(binding.value):
                problem = f"has effects ({op_name(binding.value)})"
            if problem is not None:
                raise _unfit(name, f"{binding.var.name} {problem}")
            bindings.append(binding)
    return bindings


def _unfit(name: str, problem: str) -> ModelError:
    remedy = "Use functions that contain only pure calls."
    return ModelError("DIST0351", problem, location=name, remedy=remedy)

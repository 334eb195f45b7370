# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Dropout in training: masks that are a function of a seed, the step and the element.

``R.nn.dropout(x, p)`` becomes a kernel that draws each element anew by a counter-based generator
(Philox), and reads ``x`` and its result alone: its gradient is the same kernel on the gradient,
and nothing is kept. The counter is the element's number in the whole tensor, which the kernel gets
as one vector of offsets per dim, and the number of the dropout in the step, its stream. Where the
tensor is cut, so are the offsets: each device draws the elements that it holds. Seed and step are
the key. A private function is told its first stream.

Before::

    def layer(x, w):
        y = R.nn.dropout(x, rate=0.1)[0]

After::

    def layer(x, w, dropout, stream):           # int64 (): seed and step; the first stream
        y = R.call_tir_with_grad(cls.dropout_kernel, (x, dropout, stream, *offsets))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, relax, te, tirx
from tvm.relax.op import call_tir_with_grad

from ...errors import ModelError
from ...ir import PARAM_NAMES_ATTR, param_names, relax_functions, static_shape
from ...ir.rewrite import BlockWriter, all_bindings, callees_first, retyped, variables, with_body
from ...plan import MAIN
from .primfuncs import register_primfunc_gradient

DROPOUT, STREAM = "dropout", "dropout_stream"
"""Names of the state, int64 (): seed times 2^32, plus the steps so far; and of streams."""

SEEDS = 1 << 48
"""The state is below it, where it is drawn."""

ROUNDS = 10
_FACTORS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)

_GRADIENT = "tvm_distir.dropout"
_TYPE = relax.TensorType([], "int64")


def with_streams(mod: ir.IRModule) -> ir.IRModule:
    """Write dropouts as kernels; functions that hold some get a parameter more, the last one.

    Raises
    ------
    ModelError
        DIST0351 where the mask of a dropout is read, or its shape is not known.
    """
    if not any(
        _is_dropout(b.value) for _, fn in relax_functions(mod) for b in all_bindings(fn.body)
    ):
        return mod
    made = _Streams()
    functions = dict(mod.functions.items())
    for gv, fn in callees_first(mod):
        written = made.function(gv, fn)
        del functions[gv]
        functions[made.variables[str(gv.name_hint)]] = written
    return ir.IRModule({**functions, **made.kernels}, attrs=mod.attrs)


class _Streams:
    """Writes functions, callees first.

    Attributes
    ----------
    kernels : dict of GlobalVar to PrimFunc
    variables : dict of str to GlobalVar
        Of the functions as they are written.
    """

    def __init__(self) -> None:
        self.kernels: dict[Any, Any] = {}
        self.variables: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._known: dict[Any, Any] = {}

    def function(self, gv: Any, fn: relax.Function) -> relax.Function:
        """Write one function."""
        name = str(gv.name_hint)
        added = [relax.Var(DROPOUT, _TYPE)]
        if name != MAIN:
            added.append(relax.Var(STREAM, _TYPE))
        builder = relax.BlockBuilder()
        builder.begin_scope([*fn.params, *added])
        body = _Body(self, name, added)
        blocks = []
        for block in fn.body.blocks:
            writer = BlockWriter(builder, isinstance(block, relax.DataflowBlock))
            for binding in block.bindings:
                body.write(writer, binding)
            blocks.append(writer.block())
        builder.end_scope()
        body.check("result", variables(fn.body.body))
        self._counts[name], self.variables[name] = body.count, gv
        if not body.count:
            return fn
        new = with_body(fn, [*fn.params, *added], blocks, fn.body.body, bool(fn.is_pure))
        if name == MAIN:
            new = new.with_attr(PARAM_NAMES_ATTR, [*param_names(fn), DROPOUT])
        self.variables[name] = retyped(gv, new.ty)
        return new

    def streams_of(self, value: Any) -> int:
        """How many dropouts a call of a function runs."""
        called = isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar)
        return self._counts.get(str(value.op.name_hint), 0) if called else 0

    def kernel(self, shape: tuple[int, ...], dtype: str, rate: float) -> Any:
        """The kernel of a dropout."""
        key = (shape, dtype, rate)
        if key not in self._known:
            function = _kernel(shape, dtype, rate)
            handle = relax.BlockBuilder().add_func(function, f"dropout_kernel_{len(self._known)}")
            self._known[key], self.kernels[handle] = handle, function
        return self._known[key]


class _Body:
    """The bindings of one function.

    Attributes
    ----------
    count : int
        Dropouts so far, those of called functions among them.
    """

    def __init__(self, streams: _Streams, function: str, added: Sequence[Any]) -> None:
        self.streams, self.function, self.added = streams, function, added
        self.count = 0
        self._drawn: dict[Any, Any] = {}
        self._masks: set[Any] = set()

    def write(self, writer: BlockWriter, binding: Any) -> None:
        """Write a binding."""
        var, value = binding.var, binding.value
        item = isinstance(value, relax.TupleGetItem) and value.tuple_value in self._drawn
        if _is_dropout(value):
            self._drawn[var] = self._kernel(writer, var, value)
        elif item and int(value.index) == 0:
            writer.bind(var, self._drawn[value.tuple_value])
        elif item:
            self._masks.add(var)
        elif self.streams.streams_of(value):
            name = str(value.op.name_hint)
            given = self._given(writer, self.streams.streams_of(value))
            call = ir.Call(self.streams.variables[name], [*value.args, *given], value.attrs)
            writer.bind(var, writer.builder.normalize(call))
        else:
            self.check(str(var.name), variables(value))
            writer.bindings.append(binding)

    def check(self, place: str, read: Iterable[Any]) -> None:
        """Refuse what reads a mask, or both results at once."""
        if any(var in self._masks or var in self._drawn for var in read):
            raise _unfit(f"{self.function}/{place}", "it reads the mask of a dropout")

    def _given(self, writer: BlockWriter, count: int) -> list[Any]:
        """The state, and the first of so many streams that are taken."""
        stream = relax.const(self.count, "int64")
        if len(self.added) > 1:
            stream = self.added[1]
            if self.count:
                moved = relax.op.add(stream, relax.const(self.count, "int64"))
                stream = writer.emit(moved, "stream")
        self.count += count
        return [self.added[0], stream]

    def _kernel(self, writer: BlockWriter, var: Any, call: ir.Call) -> Any:
        x, rate = call.args[0], float(call.attrs.rate)
        shape, place = static_shape(x.ty), f"{self.function}/{var.name}"
        if shape is None or not all(isinstance(n, int) for n in shape):
            raise _unfit(place, f"a dropout of the unknown shape {x.ty}")
        if not 0 <= rate < 1:
            raise _unfit(place, f"a dropout with the rate {rate}")
        offsets = []
        for dim, size in enumerate(shape):
            step = math.prod(shape[dim + 1 :])
            numbers = relax.op.arange(0, size * step, step, "int64")
            offsets.append(writer.emit(numbers, "offsets"))
        kernel = self.streams.kernel(shape, str(x.ty.dtype), rate)
        args = relax.Tuple([x, *self._given(writer, 1), *offsets])
        drawn = call_tir_with_grad(kernel, args, x.ty, te_grad_name=_GRADIENT)
        return writer.emit(drawn, f"{var.name}_drawn")


def _is_dropout(value: Any) -> bool:
    return (
        isinstance(value, ir.Call)
        and isinstance(value.op, ir.Op)
        and str(value.op.name) == "relax.nn.dropout"
    )


def _unfit(place: str, what: str) -> ModelError:
    remedy = "Read the first result of a dropout of a static shape, with a rate below 1."
    return ModelError("DIST0351", what, place=place, remedy=remedy)


def _kernel(shape: tuple[int, ...], dtype: str, rate: float) -> tirx.PrimFunc:
    """Write ``(x, state, stream, *offsets, result)``; what stays is divided by its chance."""
    x = te.placeholder(shape, dtype, name="x")
    state, stream = (te.placeholder((), "int64", name=name) for name in ("state", "stream"))
    offsets = [te.placeholder((n,), "int64", name=f"offset{d}") for d, n in enumerate(shape)]
    scale, threshold = tirx.const(1 / (1 - rate), dtype), round(rate * 2**32)

    def drawn(*at: Any) -> Any:
        element = tirx.const(0, "int64")
        for offset, i in zip(offsets, at, strict=True):
            element = element + offset[i]
        named: list[tuple[Any, Any]] = []
        word = philox((*_words(element), *_words(stream())), _words(state()), named)[0]
        kept = word >= tirx.const(threshold, "uint64")
        value = tirx.Select(kept, x(*at) * scale, tirx.const(0, dtype))
        for var, what in reversed(named):
            value = tirx.Let(var, what, value)
        return value

    result = te.compute(shape, drawn, name="dropped")
    function = te.create_prim_func([x, state, stream, *offsets, result])
    return function.without_attr("global_symbol")


def _words(value: Any) -> list[Any]:
    """The low and the high word of an int64."""
    low = value & tirx.const(0xFFFFFFFF, "int64")
    high = (value >> tirx.const(32, "int64")) & tirx.const(0xFFFFFFFF, "int64")
    return [low.astype("uint64"), high.astype("uint64")]


def philox(counter: Sequence[Any], key: Sequence[Any], named: list[tuple[Any, Any]]) -> list[Any]:
    """Philox4x32-10 (Salmon et al. 2011) on words of 32 bits, held as uint64.

    Nothing exceeds 64 bits: TVM simplifies integers as if they never overflowed.

    Parameters
    ----------
    counter : sequence of 4 expressions
    key : sequence of 2 expressions
    named : list
        Gets variables and what they stand for, in order; the result is over them.
    """

    def let(value: Any) -> Any:
        named.append((tirx.Var(f"v{len(named)}", "uint64"), value))
        return named[-1][0]

    half, low = tirx.const(32, "uint64"), tirx.const(0xFFFFFFFF, "uint64")
    words, keys = list(counter), list(key)
    for number in range(ROUNDS):
        if number:
            keys = [let((k + tirx.const(w, "uint64")) & low) for k, w in zip(keys, _WEYL)]
        first, second = (
            let(words[2 * i] * tirx.const(m, "uint64")) for i, m in enumerate(_FACTORS)
        )
        words = [
            let((second >> half) ^ words[1] ^ keys[0]),
            let(second & low),
            let((first >> half) ^ words[3] ^ keys[1]),
            let(first & low),
        ]
    return words


def _backward(call: ir.Call, _: Any, grads: Any, builder: relax.BlockBuilder) -> list[Any]:
    """The kernel on the gradient of the result, for the gradient of the operand."""
    operands = call.args[1].fields
    again = relax.Tuple([grads[0], *operands[1:]])
    found = relax.call_tir(call.args[0], again, operands[0].ty)
    return [found, *[None] * (len(operands) - 1)]


register_primfunc_gradient(_GRADIENT, _backward)

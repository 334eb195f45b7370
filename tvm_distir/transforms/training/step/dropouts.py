# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write dropout for training, with masks determined by a seed, the step and the element.

``R.nn.dropout(x, p)`` becomes a kernel that generates the mask of each element by a counter-based
generator (Philox), and reads ``x`` only: its gradient is the same kernel on the gradient, and
nothing is saved. The counter is the element's number in the full tensor, which the kernel gets
as one vector of offsets per dim, and the number of the dropout in the step, its stream. Where the
tensor is sharded, so are the offsets: each device generates the elements that it holds. Seed and
step are the key. The first stream of a private function is a parameter.

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

from tvm import ir, relax, tirx
from tvm.relax import Binding, Var
from tvm.relax.op import call_tir_with_grad

from tvm_distir.core.ir import static_shape
from tvm_distir.core.ir.attributes import DROPOUT_KERNEL, PARAM_NAMES_ATTR, param_names
from tvm_distir.core.plan import MAIN
from tvm_distir.core.rewriting import (
    BlockWriter,
    callee_of,
    callees_first,
    calls_op,
    op_name,
    retyped,
    substitute,
    typed,
    variables,
    with_body,
)
from tvm_distir.support import ModelError, memoized
from tvm_distir.transforms.training.autodiff.rules.masks import GRADIENT, dropout_kernel

DROPOUT, STREAM = "dropout", "dropout_stream"
"""Names of the state, int64 (): seed times 2^32, plus the steps so far; and of streams, int64 ():
the number of a dropout in the step; micro-batches have their number in the high word."""

SEEDS = 1 << 48
"""The state is below it, where it is drawn."""

_TYPE, _DROPOUT_OP = relax.TensorType([], "int64"), "relax.nn.dropout"


def with_streams(mod: ir.IRModule, as_input: bool = False) -> ir.IRModule:
    """Write dropouts as kernels, with additional trailing parameters of their functions.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1.
    as_input : bool
        Whether ``main`` gets its first stream as a parameter too, since each micro-batch has a
        different stream.

    Raises
    ------
    ModelError
        DIST0351 if the mask of a dropout is read, or its shape is not known.
    """
    if not calls_op(mod, (_DROPOUT_OP,)):
        return mod
    streams = _Streams(as_input)
    functions = dict(mod.functions.items())
    for gv, fn in callees_first(mod):
        new_fn = streams.function(gv, fn)
        del functions[gv]
        functions[streams.variables[str(gv.name_hint)]] = new_fn
    return ir.IRModule({**functions, **streams.kernels}, attrs=mod.attrs)


class _Streams:
    """Writer of functions in the order of callees first.

    Parameters
    ----------
    as_input : bool
        See :func:`with_streams`.

    Attributes
    ----------
    kernels : dict of GlobalVar to PrimFunc
    variables : dict of str to GlobalVar
        The variable of each function as it is written.
    """

    def __init__(self, as_input: bool) -> None:
        self.as_input = as_input
        self.kernels: dict[ir.GlobalVar, tirx.PrimFunc] = {}
        self.variables: dict[str, ir.GlobalVar] = {}
        self._counts: dict[str, int] = {}

    def function(self, gv: ir.GlobalVar, fn: relax.Function) -> relax.Function:
        """Write a function."""
        name = str(gv.name_hint)
        added = [relax.Var(DROPOUT, _TYPE)]
        if name != MAIN or self.as_input:
            added.append(relax.Var(STREAM, _TYPE))
        builder = relax.BlockBuilder()
        builder.begin_scope([*fn.params, *added])
        body = _Body(self, name, added)
        blocks = BlockWriter.rewritten(builder, fn.body.blocks, body.write)
        builder.end_scope()
        body.check("result", variables(fn.body.body))
        self._counts[name], self.variables[name] = body.count, gv
        if not body.count:
            return fn
        new = with_body(fn, [*fn.params, *added], blocks, fn.body.body, bool(fn.is_pure))
        if name == MAIN:
            names = [*param_names(fn), *(str(var.name) for var in added)]
            new = new.with_attr(PARAM_NAMES_ATTR, names)
        self.variables[name] = retyped(gv, new.ty)
        return new

    def streams_of(self, value: Any) -> int:
        """Return how many dropouts a call of a function runs."""
        callee = callee_of(value)
        return 0 if callee is None else self._counts.get(str(callee.name_hint), 0)

    @memoized
    def kernel(self, shape: tuple[int, ...], dtype: str, rate: float) -> Any:
        """Return the kernel of a dropout."""
        function = dropout_kernel(shape, dtype, rate)
        handle = relax.BlockBuilder().add_func(function, f"{DROPOUT_KERNEL}_{len(self.kernels)}")
        self.kernels[handle] = function
        return handle


class _Body:
    """Writer of the bindings of a function.

    Attributes
    ----------
    count : int
        Dropouts so far, those of called functions among them.
    """

    def __init__(self, streams: _Streams, function: str, added: Sequence[Any]) -> None:
        self.streams, self.function, self.added = streams, function, added
        self.count = 0
        self._drawn: dict[Var, Var] = {}
        self._masks: set[Var] = set()

    def write(self, writer: BlockWriter, binding: Binding) -> None:
        """Write a binding."""
        var, value = binding.var, binding.value
        item = isinstance(value, relax.TupleGetItem) and value.tuple_value in self._drawn
        if op_name(value) == "nn.dropout":
            self._drawn[var] = self._kernel(writer, var, value)
        elif item and int(value.index) == 0:
            writer.bind(var, self._drawn[value.tuple_value])
        elif item:
            self._masks.add(var)
        elif self.streams.streams_of(value):
            name = str(value.op.name_hint)
            streams = self._given(writer, self.streams.streams_of(value))
            call = ir.Call(self.streams.variables[name], [*value.args, *streams], value.attrs)
            writer.bind(var, writer.builder.normalize(call))
        else:
            self.check(str(var.name), variables(value))
            writer.bindings.append(binding)

    def check(self, location: str, read: Iterable[Any]) -> None:
        """Reject readers of a mask, or of both results as a tuple."""
        if any(var in self._masks or var in self._drawn for var in read):
            raise _unfit(f"{self.function}/{location}", "it reads the mask of a dropout")

    def _given(self, writer: BlockWriter, count: int) -> list[Any]:
        """Return the state, and the first of the next streams."""
        stream = relax.const(self.count, "int64")
        if len(self.added) > 1:
            stream = self.added[1]
            if self.count:
                moved = relax.op.add(stream, relax.const(self.count, "int64"))
                stream = writer.emit(moved, "stream")
        self.count += count
        return [self.added[0], stream]

    def _kernel(self, writer: BlockWriter, var: Var, call: ir.Call) -> Any:
        x, rate = call.args[0], float(call.attrs.rate)
        shape, location = static_shape(x.ty), f"{self.function}/{var.name}"
        if shape is None or not all(isinstance(n, int) for n in shape):
            raise _unfit(location, f"a dropout of the unknown shape {x.ty}")
        if not 0 <= rate < 1:
            raise _unfit(location, f"a dropout with the rate {rate}")
        steps = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        offsets = [
            writer.emit(relax.op.arange(0, size * step, step, "int64"), "offsets")
            for size, step in zip(shape, steps, strict=True)
        ]
        kernel = self.streams.kernel(shape, str(x.ty.dtype), rate)
        args = relax.Tuple([x, *self._given(writer, 1), *offsets])
        sampled = call_tir_with_grad(kernel, args, x.ty, te_grad_name=GRADIENT)
        return writer.emit(sampled, f"{var.name}_drawn")


def from_first_stream(bindings: Sequence[Binding], stream: Any) -> tuple[int, list[Binding]]:
    """Number streams from the first stream that some bindings use.

    Parameters
    ----------
    bindings : sequence of Binding
        The bindings of ``main``.
    stream : Var or None
        The first stream of the bindings.

    Returns
    -------
    first : int
    bindings : list of Binding
        The bindings over ``stream`` as if it were their first stream.
    """
    if stream is None:
        return 0, list(bindings)
    moved = {
        b.var: int(b.value.args[1].value.numpy())
        for b in bindings
        if op_name(b.value) == "add" and stream in variables(b.value)
    }
    read = any(b.var not in moved and stream in variables(b.value) for b in bindings)
    first = 0 if read else min(moved.values(), default=0)
    result: list[Binding] = []
    env: dict[Var, Var] = {var: stream for var, number in moved.items() if number == first}
    for b in bindings:
        if b.var in env:
            continue
        value = substitute(b.value, env)
        if b.var in moved:
            number = relax.const(moved[b.var] - first, "int64")
            value = typed(relax.op.add(stream, number), b.var.ty)
        result.append(relax.VarBinding(b.var, value))
    return first, result if first else list(bindings)


def _unfit(location: str, problem: str) -> ModelError:
    remedy = "Read the first result of a dropout of a static shape, with a rate below 1."
    return ModelError("DIST0351", problem, location=location, remedy=remedy)

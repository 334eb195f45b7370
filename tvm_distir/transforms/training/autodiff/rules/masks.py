# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build the dropout kernel, with random numbers of a counter-based generator (Philox)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, te, tirx
from tvm.relax import BlockBuilder, Expr, Var

from tvm_distir.core.ir import known_shape
from tvm_distir.core.ir.attributes import DROPOUT_KERNEL, DROPOUT_RATE_ATTR
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions

from .primfuncs import register_primfunc_gradient

GRADIENT = "tvm_distir.dropout"
"""Name of its gradient."""

ROUNDS = 10
_FACTORS, _WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def dropout_kernel(shape: tuple[int, ...], dtype: str, rate: float) -> tirx.PrimFunc:
    """Build ``(x, state, stream, *offsets, result)``, with retained elements scaled up."""
    draw = _Draw(shape, rate)
    x = te.placeholder(shape, dtype, name="x")

    def dropped(*at: Any) -> Any:
        return draw.over(at, lambda mask: _scaled(mask, x(*at), rate, dtype))

    function = _function([x, *draw.operands, te.compute(shape, dropped, name="dropped")])
    return function.with_attr(DROPOUT_RATE_ATTR, rate)


def mask_keeping_kernel(shape: tuple[int, ...], dtype: str, rate: float) -> tirx.PrimFunc:
    """Build ``(x, state, stream, *offsets, result, mask)``, which also returns the mask."""
    draw = _Draw(shape, rate)
    x = te.placeholder(shape, dtype, name="x")
    mask = te.compute(shape, lambda *at: draw.over(at, lambda bit: bit), name="mask")
    result = te.compute(shape, lambda *at: _scaled(mask(*at), x(*at), rate, dtype), name="dropped")
    return _function([x, *draw.operands, result, mask])


def masked_kernel(shape: tuple[int, ...], dtype: str, rate: float) -> tirx.PrimFunc:
    """Build ``(x, mask, result)``, a dropout with a stored mask."""
    x = te.placeholder(shape, dtype, name="x")
    mask = te.placeholder(shape, "bool", name="mask")
    result = te.compute(shape, lambda *at: _scaled(mask(*at), x(*at), rate, dtype), name="dropped")
    return _function([x, mask, result])


class _Draw:
    """Random mask of the elements.

    Attributes
    ----------
    operands : list of Tensor
        State, stream and the offsets of each dim.
    """

    def __init__(self, shape: tuple[int, ...], rate: float) -> None:
        self._state, self._stream = (
            te.placeholder((), "int64", name=name) for name in ("state", "stream")
        )
        self._offsets = [
            te.placeholder((n,), "int64", name=f"offset{d}") for d, n in enumerate(shape)
        ]
        self._threshold = tirx.const(round(rate * 2**32), "uint64")
        self.operands = [self._state, self._stream, *self._offsets]

    def over(self, at: Sequence[Any], of: Callable[[Any], Any]) -> Any:
        """Return the expression of whether an element is retained."""
        element = tirx.const(0, "int64")
        for offset, i in zip(self._offsets, at, strict=True):
            element = element + offset[i]
        named: list[tuple[Var, Expr]] = []
        counter = (*_words(element), *_words(self._stream()))
        value = of(philox(counter, _words(self._state()), named)[0] >= self._threshold)
        for var, title in reversed(named):
            value = tirx.Let(var, title, value)
        return value


def _scaled(mask: Any, value: Any, rate: float, dtype: str) -> Any:
    return tirx.Select(mask, value * tirx.const(1 / (1 - rate), dtype), tirx.const(0, dtype))


def _function(tensors: list[Any]) -> tirx.PrimFunc:
    return te.create_prim_func(tensors).without_attr("global_symbol")


def _words(value: Any) -> list[Any]:
    """Return the low and the high word of an int64."""
    low = value & tirx.const(0xFFFFFFFF, "int64")
    high = (value >> tirx.const(32, "int64")) & tirx.const(0xFFFFFFFF, "int64")
    return [low.astype("uint64"), high.astype("uint64")]


def philox(counter: Sequence[Any], key: Sequence[Any], named: list[tuple[Any, Any]]) -> list[Any]:
    """Compute Philox4x32-10 (Salmon et al. 2011) on 32-bit words held as uint64.

    Nothing exceeds 64 bits: TVM simplifies integers as if they never overflowed.

    Parameters
    ----------
    counter : sequence of 4 expressions
    key : sequence of 2 expressions
    named : list
        Gets variables and what they represent, in order; the result is over them.
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


def _backward(call: ir.Call, _: Any, grads: Any, builder: BlockBuilder) -> list[Any]:
    """Apply the kernel to the gradient of the result."""
    operands = call.args[1].fields
    arguments = relax.Tuple([grads[0], *operands[1:]])
    gradient = relax.call_tir(call.args[0], arguments, operands[0].ty)
    return [gradient, *[None] * (len(operands) - 1)]


register_primfunc_gradient(GRADIENT, _backward)


class MaskKernels:
    """Builder of the two kernels of a dropout, once per type and rate.

    Parameters
    ----------
    functions : NamedFunctions
        New ones are added.
    """

    def __init__(self, functions: NamedFunctions) -> None:
        self.functions = functions
        self._kernels: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def __call__(self, handle: Any, ty: ir.Type) -> tuple[Any, Any] | None:
        """Return the kernel that stores the mask, and the kernel that reads it.

        Parameters
        ----------
        handle : GlobalVar
            The kernel; None is returned where it draws no mask.
        ty : TensorType
            The type of its result.
        """
        kernel = self.functions.of.get(str(handle.name_hint))
        rate = (getattr(kernel, "attrs", None) or {}).get(DROPOUT_RATE_ATTR)
        if rate is None:
            return None
        rate = float(rate)
        shape, dtype = known_shape(ty) or (), str(ty.dtype)
        key = (shape, dtype, rate)
        if key not in self._kernels:
            mask_kernel = mask_keeping_kernel(shape, dtype, rate)
            masked = masked_kernel(shape, dtype, rate)
            self._kernels[key] = (
                self.functions.add(f"{DROPOUT_KERNEL}_keeping", mask_kernel),
                self.functions.add(f"{DROPOUT_KERNEL}_masked", masked),
            )
        return self._kernels[key]

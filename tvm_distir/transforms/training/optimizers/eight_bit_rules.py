# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define AdamW with moments of 8 bits, quantized in blocks."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import Type
from tvm.relax import BlockBuilder, Expr
from tvm.relax.op import (
    abs as abs_op,
)
from tvm.relax.op import (
    astype,
    bucketize,
    clip,
    divide,
    maximum,
    multiply,
    nn,
    reshape,
    strided_slice,
    take,
)
from tvm.relax.op import max as max_op

from tvm_distir.core.ir import known_shape
from tvm_distir.core.rewriting import scalar

from .protocol import Shared, cast
from .ranges import at_least_zero
from .update_rules import AdamW

BLOCK = 256
"""Elements that share a scale."""
ABSMAX = "_absmax"
"""End of the names of the states that are scales."""
_LEAST_ABSMAX = 1e-38


@functools.cache
def dynamic_map(signed: bool) -> np.ndarray:
    """Return the 256 numbers of the dynamic data type, ascending, float32 (256,).

    Numbers have an exponent of base ten, from -6 to 0, and as many fraction bits as it leaves:
    the means of neighbours among equally spaced numbers from 0.1 to 1, times the power. 0 and 1
    are among them (Dettmers 2016; Dettmers et al. 2022, section 2; ``create_dynamic_map`` of
    bitsandbytes).
    """
    numbers = [0.0, 1.0]
    for exponent in range(7):
        edges = np.linspace(0.1, 1, 2 ** (exponent + (not signed)) + 1)
        means = 10.0 ** (exponent - 6) * (edges[:-1] + edges[1:]) / 2
        numbers += [*means, *(-means if signed else ())]
    return np.sort(np.array(numbers, np.float32))


@dataclass(frozen=True)
class AdamW8bit(AdamW):
    """AdamW whose moments are codes of 8 bits, as of bitsandbytes (Dettmers et al. 2022).

    A code is the position in a table of 256 numbers, which are multiplied by the largest absolute
    value of a block of 256 elements that follow each other in memory. The moments are dequantized,
    updated in float32, as is the weight, and quantized to the nearest number.

    Attributes
    ----------
    rate, beta1, beta2, epsilon, decay : float
    least : float
        Weights with fewer elements have moments in float32.
    """

    least: float = at_least_zero(4096.0)
    wide = True

    def states(self, weight: Type) -> dict[str, Type]:
        """Return the types of the codes and scales, or of float32 moments of small weights."""
        blocks = self._blocks(weight)
        if blocks is None:
            return dict.fromkeys("mv", relax.TensorType(weight.shape, "float32"))
        codes = relax.TensorType(weight.shape, "uint8")
        scales = relax.TensorType(blocks, "float32")
        return {"m": codes, f"m{ABSMAX}": scales, "v": codes, f"v{ABSMAX}": scales}

    def update(
        self, builder: BlockBuilder, weight: Expr, grad: Expr, states: list[Expr], shared: Shared
    ) -> tuple[Expr, list[Expr]]:
        """Update a weight; see :class:`.protocol.Optimizer`."""
        dtype, blocks = str(weight.ty.dtype), self._blocks(weight.ty)
        weight = cast(builder, weight, "float32")
        if blocks is not None:
            pairs = (states[:2], True), (states[2:], False)
            states = [_dequantized(builder, pair, signed) for pair, signed in pairs]
        new, moments = super().update(builder, weight, grad, states, shared)
        if blocks is not None:
            first, second = moments
            moments = [
                *_quantized(builder, first, blocks, True),
                *_quantized(builder, second, blocks, False),
            ]
        return new if dtype == "float32" else astype(builder.emit(new), dtype), moments

    def _blocks(self, weight: Type) -> list[int] | None:
        """Return the sizes of the scales of a weight; None where its moments are float32.

        Where blocks do not cross rows, scales have the dims of the weight.
        """
        shape = known_shape(weight) or ()
        sizes = [size for size in shape if isinstance(size, int)]
        count = math.prod(sizes)
        if len(sizes) < len(shape) or not sizes or count < self.least:
            return None
        if sizes[-1] % BLOCK == 0:
            return [*sizes[:-1], sizes[-1] // BLOCK]
        return [math.ceil(count / BLOCK)]


def _in_blocks(builder: BlockBuilder, value: Expr, blocks: list[int], fill: float) -> Expr:
    """Return a tensor as blocks ``(*blocks, 256)``, the last one filled up."""
    missing = math.prod(blocks) * BLOCK - math.prod(map(int, known_shape(value.ty) or ()))
    if missing:
        flat = builder.emit(reshape(value, (-1,)))
        value = builder.emit(nn.pad(flat, [0, missing], pad_value=fill))
    return builder.emit(reshape(value, [*blocks, BLOCK]))


def _as_weight(builder: BlockBuilder, value: Expr, shape: list[int]) -> Expr:
    """Return blocks as a tensor of the shape of the weight, without what fills the last block."""
    count = math.prod(shape)
    if math.prod(map(int, known_shape(value.ty) or ())) > count:
        flat = builder.emit(reshape(value, (-1,)))
        value = builder.emit(strided_slice(flat, [0], [0], [count]))
    return builder.emit(reshape(value, shape))


def _dequantized(builder: BlockBuilder, pair: list[Expr], signed: bool) -> Expr:
    """Return a moment, float32 of the shape of the weight, of its codes and scales."""
    codes, scales = pair
    shape, blocks = ([int(n) for n in known_shape(x.ty) or ()] for x in pair)
    table = relax.const(dynamic_map(signed))
    numbers = builder.emit(take(table, codes, axis=0))
    numbers = _in_blocks(builder, numbers, blocks, 0.0)
    wide = builder.emit(reshape(scales, [*blocks, 1]))
    return _as_weight(builder, builder.emit(multiply(numbers, wide)), shape)


def _quantized(builder: BlockBuilder, moment: Expr, blocks: list[int], signed: bool) -> list[Expr]:
    """Return the codes, uint8 of the shape of the weight, and the scales of a moment."""
    shape = [int(n) for n in known_shape(moment.ty) or ()]
    table = dynamic_map(signed)
    numbers = _in_blocks(builder, moment, blocks, 0.0)
    scales = builder.emit(max_op(builder.emit(abs_op(numbers)), axis=-1, keepdims=True))
    divisor = builder.emit(maximum(scales, scalar(_LEAST_ABSMAX, "float32")))
    ratios = builder.emit(divide(numbers, divisor))
    ratios = builder.emit(clip(ratios, -1.0, 1.0))
    edges = relax.const(((table[:-1] + table[1:]) / 2).astype("float32"))
    codes = builder.emit(bucketize(ratios, edges, out_int32=True))
    codes = _as_weight(builder, cast(builder, codes, "uint8"), shape)
    return [codes, builder.emit(reshape(scales, blocks))]

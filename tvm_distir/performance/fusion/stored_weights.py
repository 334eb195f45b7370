# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give the weights of quantized products their size in memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction

from tvm_distir.performance.program.checks import call_order
from tvm_distir.performance.program.parts import Function

from .dataflow import Dataflow


def quantized_bytes(size: int, bits: float) -> int:
    """Return the bytes of what has ``size`` bytes in 16 bits, with ``bits`` per element."""
    return math.ceil(size * Fraction(bits) / 16)


def store_quantized(
    functions: Mapping[str, Function], operands: Mapping[str, Mapping[int, set[int]]], bits: float
) -> dict[str, Function]:
    """Return functions whose weights take ``bits`` per element where only quantized products read.

    Parameters
    ----------
    functions : mapping of str to Function
        Of an inference program, grouped into kernels. The elements of the weights have 16 bits.
    operands : mapping of str to mapping of int to set of int
        Per function and product the values that are quantized.
    bits : float
        Bits of an element, with its share of the scales.
    """
    narrow: dict[str, set[int]] = {}
    for name in call_order(functions):
        fn, flow = functions[name], Dataflow(functions[name], False)
        quantized, plain = set[int](), {flow.source[value] for value in fn.results}
        for number, op in enumerate(fn.ops):
            if number in flow.views:
                continue
            for at, value in enumerate(op.inputs):
                if op.kind == "call":
                    is_narrow = at in narrow[op.callees[0]]
                else:
                    is_narrow = flow.source[value] in operands[name].get(number, ())
                (quantized if is_narrow else plain).add(flow.source[value])
        narrow[name] = {at for at, value in enumerate(fn.params) if value in quantized - plain}
    result = {}
    for name, fn in functions.items():
        values = list(fn.values)
        for value in (fn.params[at] for at in narrow[name]):
            size = quantized_bytes(values[value].bytes, bits)
            values[value] = values[value]._replace(bytes=size)
        result[name] = dataclasses.replace(fn, values=tuple(values))
    return result

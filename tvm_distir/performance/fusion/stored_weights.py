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
    functions: Mapping[str, Function], operands: Mapping[str, Mapping[int, Mapping[int, float]]]
) -> dict[str, Function]:
    """Return functions whose weights have few bits where only quantized products read them.

    Parameters
    ----------
    functions : mapping of str to Function
        Of an inference program, grouped into kernels. The elements of the weights have 16 bits.
    operands : mapping of str to mapping of int to mapping of int to float
        Per function and product the values that are quantized, with the bits of an element, its
        share of the scales included. Of readers with different bits the most count.
    """
    narrow: dict[str, dict[int, float]] = {}
    for name in call_order(functions):
        fn, flow = functions[name], Dataflow(functions[name], False)
        bits = dict.fromkeys((flow.source[value] for value in fn.results), 16.0)
        for number, op in enumerate(fn.ops):
            if number in flow.views:
                continue
            for at, value in enumerate(op.inputs):
                if op.kind == "call":
                    read = narrow[op.callees[0]].get(at, 16.0)
                else:
                    read = operands[name].get(number, {}).get(flow.source[value], 16.0)
                bits[flow.source[value]] = max(bits.get(flow.source[value], 0.0), read)
        narrow[name] = {at: bits[v] for at, v in enumerate(fn.params) if bits.get(v, 16.0) < 16}
    result = {}
    for name, fn in functions.items():
        values = list(fn.values)
        for at, few in narrow[name].items():
            value = fn.params[at]
            values[value] = values[value]._replace(bytes=quantized_bytes(values[value].bytes, few))
        result[name] = dataclasses.replace(fn, values=tuple(values))
    return result

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find kernels that unpack quantized weights, and the operands that are words and scales.

A word holds several numbers of few bits, as 8 of 4 bits in a ``uint32``; a scale belongs to a group
of numbers (AWQ, GPTQ and MLC-LLM store weights so). Words of all bits together with scales of
about 1 would mean weights of several units, under which the values of a deep model overflow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import tvm_ffi
from tvm import DataType, ir, tirx

from tvm_distir.core.ir import known_shape, tensor_type
from tvm_distir.support import takes_bits


class Unpacking(NamedTuple):
    """Kernel that unpacks quantized numbers.

    Attributes
    ----------
    words : tuple of int
        The operands with packed numbers.
    scales : tuple of int
        The operands with the sizes of a quantization step.
    levels : int
        The number of values that a packed number can have.
    terms : int
        The last extent of the result: a sum over a row of a weight (out, in) has so many terms.
    """

    words: tuple[int, ...]
    scales: tuple[int, ...]
    levels: int
    terms: int

    @property
    def gain(self) -> float:
        """Return the step, beside ``1 / sqrt(terms)``, of weights with deviation 1.

        A number that is uniform over n levels has the deviation ``sqrt((n**2 - 1) / 12)``.
        """
        return math.sqrt(12 / (self.levels**2 - 1))


def unpacking_of(call: ir.Call, functions: Mapping[str, ir.BaseFunc]) -> Unpacking | None:
    """Return how a ``call_tir`` unpacks quantized numbers, None for other calls.

    It has an operand of unsigned integers of which it takes single bits, and its result are floats,
    more than the operand has words; operands of floats with the same number of dims, and fewer
    elements than the result, are scales.

    Parameters
    ----------
    call : Call
    functions : mapping of str to function
        The functions of the module.
    """
    if not isinstance(call.op, ir.Op) or call.op.name != "relax.call_tir":
        return None
    result, shape = tensor_type(call.ty_args[0]), known_shape(call.ty_args[0])
    kernel = functions.get(str(call.args[0].name_hint))
    fields = getattr(call.args[1], "fields", ())
    if result is None or not shape or not isinstance(kernel, tirx.PrimFunc):
        return None
    words, scales, levels = [], [], 0
    for number, field in enumerate(fields):
        tensor, dims = tensor_type(field.ty), known_shape(field.ty)
        if tensor is None or dims is None or len(dims) != len(shape):
            continue
        per_element, dtype = math.prod(shape) / max(math.prod(dims), 1), str(tensor.dtype)
        if dtype.startswith("uint") and per_element > 1:
            words.append(number)
            levels = 1 << max(int(DataType(dtype).bits / per_element), 1)
        elif "float" in dtype and per_element > 1:
            scales.append(number)
    if not words or "float" not in str(result.dtype) or not _takes_bits(kernel):
        return None
    return Unpacking(tuple(words), tuple(scales), levels, shape[-1])


def _takes_bits(kernel: tirx.PrimFunc) -> bool:
    """Return whether a kernel shifts or masks numbers."""
    operations: list[ir.Expr] = []
    tvm_ffi.structural_walk(kernel.body, (ir.Expr, operations.append))
    return any(map(takes_bits, operations))

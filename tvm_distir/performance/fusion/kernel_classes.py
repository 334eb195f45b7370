# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Classify kernels by their data: attention scores, logits of a vocabulary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from tvm_distir.performance.program.parts import Function, Op

BATCHED, VOCABULARY, SCORES, LOGITS = "batched", "vocabulary", "scores", "logits"
UNALIGNED, ATTENTION, DECODE = "unaligned", "attention", "attention_decode"
ATTENTION_BACKWARD = "attention_backward"
_HALF = ("float16", "bfloat16")
ALIGNED = 8
"""Rows of matrices of so many elements of 16 bits, or multiples, are 16 bytes: what tensor cores
load at once (NVIDIA, *Matrix Multiplication Background User's Guide*, on tensor cores)."""
_ATTENTION = ("relax.dist.attention", "relax.dist.paged_attention")
_PRODUCTS = ("relax.matmul", "relax.einsum")
_LOG_SOFTMAX = "relax.nn.log_softmax"
_OVER_CLASSES = ("relax.exp", _LOG_SOFTMAX, "cross_entropy")
_LOSS = "cross_entropy"


def classified(fn: Function, attention_class: str = "") -> Function:
    """Name the classes of a function's kernels.

    *Scores* are what a product of two batches of matrices makes that is larger than either
    operand; such products are ``batched``, and other kernels that read or write something of that
    shape ``scores``. *Logits* are what an exponential over classes reads, as cross entropies do:
    ``logits``, and ``vocabulary`` for the products that make or read them; ``unaligned`` where
    these are of 16 bits and so many on a device that rows of logits are not aligned. Attention of
    a single query per sequence *decodes*: ``attention_decode``.

    Parameters
    ----------
    fn : Function
    attention_class : str
        The class of other attention, forward and backward; empty: that of its ops.
    """
    batched = {number for number, op in enumerate(fn.ops) if _is_batched(fn, op)}
    scores = {
        fn.values[value].shape
        for number in batched
        for value in (*fn.ops[number].inputs, *fn.ops[number].outputs)
        if _is_scores(fn, fn.ops[number], value)
    }
    logits = {
        _flat(shape)
        for op in fn.ops
        if op.op in _OVER_CLASSES
        for shape in _shapes(fn, (*op.inputs, *op.outputs))
        if 2 <= len(shape) <= 2 + (op.model_op == _LOG_SOFTMAX) and min(shape) > 1
    }
    logits |= {_flat(max(_shapes(fn, op.inputs), key=math.prod)) for op in fn.ops if op.op == _LOSS}
    ops = []
    for number, op in enumerate(fn.ops):
        if op.kind == "compute":
            shapes = set(_shapes(fn, (*op.inputs, *op.outputs)))
            classes = {shape[-1] for shape in shapes if shape and _flat(shape) in logits}
            if number in batched:
                op = op._replace(kernel_class=BATCHED)
            elif op.kernel_class == ATTENTION and op.model_op in _ATTENTION:
                query = fn.values[op.inputs[0]].shape
                other = attention_class or ATTENTION
                op = op._replace(kernel_class=DECODE if query[1] == 1 else other)
            elif op.kernel_class == ATTENTION_BACKWARD and attention_class:
                op = op._replace(kernel_class=attention_class)
            elif op.kernel_class == "matmul" and classes:
                aligned = op.dtype not in _HALF or not any(n % ALIGNED for n in classes)
                op = op._replace(kernel_class=VOCABULARY if aligned else UNALIGNED)
            elif op.kernel_class == "memory" and classes:
                op = op._replace(kernel_class=LOGITS)
            elif op.kernel_class == "memory" and scores & shapes:
                op = op._replace(kernel_class=SCORES)
        ops.append(op)
    return dataclasses.replace(fn, ops=tuple(ops))


def _shapes(fn: Function, values: Iterable[int]) -> Iterable[tuple[int, ...]]:
    return (fn.values[value].shape for value in values)


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]


def _is_batched(fn: Function, op: Op) -> bool:
    """Return whether a kernel multiplies two batches of matrices."""
    if op.kernel_class != "matmul" or op.model_op not in _PRODUCTS or len(op.inputs) < 2:
        return False
    first, second = (fn.values[value].shape for value in op.inputs[:2])
    out = fn.values[op.outputs[0]].shape
    return len(out) >= 3 and first[:-2] == second[:-2] == out[:-2] and math.prod(out[:-2]) > 0


def _is_scores(fn: Function, op: Op, value: int) -> bool:
    """Return whether a value is the largest of a batched product, and square among its matrices."""
    shape = fn.values[value].shape
    sizes = [math.prod(fn.values[v].shape) for v in (*op.inputs[:2], *op.outputs)]
    return math.prod(shape) == max(sizes) and sizes.count(max(sizes)) == 1

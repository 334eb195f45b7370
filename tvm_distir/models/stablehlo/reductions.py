# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Translate reductions, sorting and top-k."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.hlo_names import REDUCTIONS
from tvm_distir.models.common.translation import Unsupported
from tvm_distir.models.mlir.tree import Operation, RegionBlock

from .operation_call import Converter, HloCall
from .translated_values import Tensors, TranslatedTensor, array_type

_op = relax.op
_REDUCTIONS = {theirs: getattr(_op, name) for name, theirs in REDUCTIONS.items()}


def applied(block: RegionBlock) -> str:
    """Return the single operation that a block applies to its two arguments, or an empty text."""
    steps = [op for op in block.operations if op.name != "sdy.sharding_constraint"]
    names = [argument.name for argument in block.arguments]
    if len(steps) == 2 and sorted(steps[0].operands) == sorted(names):
        return steps[0].name.rpartition(".")[2]
    return ""


def is_neutral(kind: str, value: TranslatedTensor) -> bool:
    """Return whether the initial value of a reduction has no effect."""
    number = value.scalar
    if number is None:
        return False
    if kind in ("add", "multiply"):
        return bool(number == (kind == "multiply"))
    dtype = value.dtype
    if "float" in dtype:
        return bool(number == (float("-inf") if kind == "maximum" else float("inf")))
    bounds = np.iinfo(array_type(dtype))
    return bool(number == (bounds.min if kind == "maximum" else bounds.max))


def _reduce(call: HloCall) -> Expr:
    kind, dims = applied(call.region()), call.integers("dimensions")
    if len(call.operands) == 4:
        return _of_pairs(call, dims)
    if len(call.operands) != 2 or not kind:
        raise Unsupported("a reduction whose body is not a single operation")
    if not dims:
        return call[0]
    write = call.write
    if call.dtype == "bool" and kind in ("or", "and"):
        counted = write.cast(call.full(0), "int8")
        reduced = write.emit((_op.max if kind == "or" else _op.min)(counted, dims))
        return TranslatedTensor(write.cast(reduced, "bool"), call.shape)
    if kind not in _REDUCTIONS:
        raise Unsupported(f"a reduction by {kind}")
    reduced = write.emit(_REDUCTIONS[kind](call.full(0), dims))
    if not is_neutral(kind, call[1]):
        reduced = write.emit(getattr(_op, kind)(reduced, call[1].expr))
    return TranslatedTensor(reduced, call.shape)


def _of_pairs(call: HloCall, dims: list[int]) -> Tensors:
    """Translate the maximum or minimum with its index, as argmax and argmin write it."""
    first = next((op for op in call.region().operations if op.name.endswith(".compare")), None)
    direction = str(first.attributes.get("comparison_direction", "")) if first else ""
    if len(dims) != 1 or call[1].counts != dims[0] or direction not in ("GT", "GE", "LT", "LE"):
        raise Unsupported("a reduction of two tensors that is not argmax or argmin")
    names = [argument.name for argument in call.region().arguments]
    if first is None or first.operands != [names[0], names[2]]:
        raise Unsupported("a reduction of two tensors that is not argmax or argmin")
    largest, write, x = direction[0] == "G", call.write, call.full(0)
    position = write.emit((_op.argmax if largest else _op.argmin)(x, dims[0]))
    extreme = write.emit((_op.max if largest else _op.min)(x, dims))
    return [write.value(extreme), write.value(write.cast(position, call.result_dtype(1)))]


def _sort(call: HloCall) -> Tensors:
    """Translate a sort by the first operand, the only operand that is compared."""
    axis, write = int(call.attribute("dimension", -1)) % len(call[0].shape), call.write
    descending = _is_descending(call.region())
    dtype = call[0].dtype  # TVM has no sort of unsigned integers
    x = write.cast(call.full(0), "int64" if dtype in ("uint8", "uint16", "uint32") else dtype)
    ordered = write.emit(_op.sort(x, axis, descending))
    results = [write.value(write.cast(ordered, dtype))]
    if len(call.operands) > 1:
        order = write.emit(_op.argsort(x, axis, descending, "int32"))
        for index in range(1, len(call.operands)):
            if call[index].counts == axis and call[index].dtype == "int32":
                results.append(write.value(order))
                continue
            moved = write.emit(_op.gather_elements(call.full(index), order, axis=axis))
            results.append(write.value(moved))
    return results


def _is_descending(block: RegionBlock) -> bool:
    """Return whether a comparator is descending; it may normalize zeros and NaN."""
    producers = {result: op for op in block.operations for result in op.results}
    last = producers.get(block.operations[-1].operands[0])
    if last is None or not last.name.endswith(".compare"):
        raise Unsupported("a sort by several keys")
    sides = [_source(name, producers) for name in last.operands]
    names = [argument.name for argument in block.arguments[:2]]
    direction = str(last.attributes.get("comparison_direction"))
    if sorted(sides) != sorted(names) or direction[:1] not in ("L", "G"):
        raise Unsupported("a sort whose comparison does not use its first operand")
    return (direction[0] == "G") == (sides == names)


def _source(name: str, producers: dict[str, Operation]) -> str:
    """Return the argument that a value equals up to zeros and NaN."""
    while name in producers:
        step = producers[name]
        if not step.name.endswith(".select"):
            return ""
        name = step.operands[2]
    return name


def _top_k(call: HloCall) -> Tensors:
    count, write = int(call.attribute("k")), call.write
    dtype = call.result_dtype(1)
    pair = write.emit(_op.topk(call.full(0), k=count, axis=-1, ret_type="both", dtype=dtype))
    return write.values(pair)


CONVERTERS: dict[str, Converter] = {
    "stablehlo.reduce": _reduce,
    "stablehlo.sort": _sort,
    "chlo.top_k": _top_k,
}

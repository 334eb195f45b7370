# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Unroll loops of known or bounded length, and write branches: an ``If`` where data chooses."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax
from tvm.relax import Expr

from tvm_distir.models.common.translation import Unsupported
from tvm_distir.support import reachable

from .elementwise import same, spread
from .operation_call import Converter, HloCall
from .translated_values import Tensors, TranslatedTensor, constant

MAX_ROUNDS = 4096
_OF_CONDITIONS = ("stablehlo.and", "stablehlo.compare", "stablehlo.convert")
"""Operations of a conjunction of comparisons, as JAX writes it."""


def _while(call: HloCall) -> Tensors:
    """Unroll the iterations of a loop; calls in them remain calls.

    A loop whose end depends on data is unrolled up to its bound. Each iteration is computed as if
    the loop went on, so that counters remain numbers, and its results replace the ones before only
    while the loop does go on.
    """
    results: Tensors = call.operands
    values = results
    running: TranslatedTensor | None = None
    for count in range(MAX_ROUNDS):
        condition = call.run(call.region(0), values)[0]
        if condition.integer == 0:
            return results
        if condition.integer is None:
            if not _is_counted(call, values):
                if call.loops is None:
                    problem = "a loop whose number of iterations depends on data and has no bound"
                    raise Unsupported(f"{problem} (loops=N gives one)")
                if count >= call.loops:
                    return results
            running = condition if running is None else _both(call, running, condition)
        values = call.run(call.region(1), values)
        if running is None:
            results = values
        else:
            results = [_chosen(call, running, *pair) for pair in zip(values, results, strict=True)]
    raise Unsupported(f"a loop of more than {MAX_ROUNDS} iterations")


def _is_counted(call: HloCall, values: Tensors) -> bool:
    """Return whether the condition of a loop is a conjunction with a comparison of a counter."""
    block = call.region(0)
    producers = {name: op for op in block.operations for name in op.results}
    counters = {a.name for a, value in zip(block.arguments, values) if value.integer is not None}

    def operands(name: str) -> Sequence[str]:
        producer = producers.get(name)
        of_condition = producer is not None and producer.name in _OF_CONDITIONS
        return producer.operands if producer is not None and of_condition else ()

    compared = reachable(block.operations[-1].operands, operands)
    return any(counters.intersection(operands(name)) for name in compared)


def _both(call: HloCall, first: TranslatedTensor, second: TranslatedTensor) -> TranslatedTensor:
    return call.write.value(call.write.emit(relax.op.logical_and(first.expr, second.expr)))


def _chosen(
    call: HloCall, running: TranslatedTensor, value: TranslatedTensor, before: TranslatedTensor
) -> TranslatedTensor:
    """Return the value of an iteration that ran, else the value before it."""
    if value is before:
        return value
    condition = TranslatedTensor(running.expr, value.shape)
    return spread(call, relax.op.where, [condition, value, before])


def _branch(call: HloCall) -> Tensors:
    """Inline the branch of a known condition, or write an ``If`` where data chooses.

    ``stablehlo.if`` has the branch of a true condition first; the last branch of a
    ``stablehlo.case`` is also that of an index that no branch has.
    """
    chosen, count = call[0].integer, len(call.operation.regions)
    if chosen is None:
        return call.write.values(_selected(call, 0))
    if call.operation.name.endswith(".if"):
        chosen = 1 - chosen
    index = chosen if 0 <= chosen < count else count - 1
    return call.run(call.region(index), [])


def _selected(call: HloCall, position: int) -> Expr:
    """Return the result of the branches from a position on: an ``If`` for each but the last."""

    def branch() -> Expr:
        results = [call.write.full(v) for v in call.run(call.region(position), [])]
        return results[0] if len(results) == 1 else relax.Tuple(results)

    if position == len(call.operation.regions) - 1:
        return branch()
    condition = call.full(0)
    if call[0].dtype != "bool":
        number = constant(position, call[0].dtype)
        condition = call.write.emit(relax.op.equal(condition, number))
    return call.write.branches(condition, branch, lambda: _selected(call, position + 1))


CONVERTERS: dict[str, Converter] = {
    "stablehlo.while": _while,
    "stablehlo.case": _branch,
    "stablehlo.if": _branch,
    "sdy.propagation_barrier": same,
}

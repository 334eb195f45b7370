# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Remove unread bindings, based on a scan of the function."""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_distir.core import (
    ITEM,
    TUPLE,
    FunctionView,
    Member,
    Readings,
    handle,
    is_pure,
    make_binding,
    with_body,
)


def without_dead(member: Member, readings: Readings) -> Member:
    """Return a function without its unread bindings, which may read fields of results."""
    fn, reading = member.fn, member.reading
    taken = _fields_taken(reading)
    live, pure = set(reading.result), dict[int, bool]()
    kept, first = list[int](), reading.params
    for number in range(len(reading.bindings) - 1, -1, -1):
        if first + number not in live:
            like = reading.like[number]
            if like < 0 or like not in pure:
                pure[like] = is_pure(reading.values[number])
            if pure[like]:
                continue
        kept.append(number)
        live.update((taken[number],) if number in taken else reading.used(number))
    if len(kept) == len(reading.bindings):
        return member
    stays, blocks, number = set(kept), [], -1
    for block in fn.body.blocks:
        bindings = []
        for _ in range(len(block.bindings)):
            number += 1
            if number in taken and number in stays:
                var = reading.variables[reading.params + number]
                bindings.append(make_binding(var, reading.variables[taken[number]]))
            elif number in stays:
                bindings.append(reading.bindings[number])
        if bindings:
            blocks.append(type(block)(bindings))
    new = with_body(fn, fn.params, blocks, fn.body.body, bool(fn.is_pure))
    return Member(member.gv, new, readings.of([new])[0])


def _fields_taken(reading: FunctionView) -> dict[int, int]:
    """Map bindings that take a field of a tuple literal to the variable of that field.

    Only of variables that no block hides.
    """
    numbers: dict[Any, int] = {}
    result: dict[int, int] = {}
    for number, (kind, like) in enumerate(zip(reading.kinds, reading.like)):
        if kind != ITEM or like < 0:
            continue
        source = reading.used(number)[0] - reading.params
        if source < 0 or reading.kinds[source] != TUPLE:
            continue
        item = reading.values[source].fields[int(reading.values[number].index)]
        if type(item) is ir.Var:
            if not numbers:
                numbers = {handle(var): n for n, var in enumerate(reading.variables)}
            result[number] = numbers[handle(item)]
    return result

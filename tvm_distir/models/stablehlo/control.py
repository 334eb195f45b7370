# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Unroll loops of known length, and inline branches of known conditions."""

from __future__ import annotations

from .elementwise import same
from .operation_call import Converter, HloCall
from .translated_values import TranslatedTensor, UnsupportedOperation

MAX_ROUNDS = 4096


def _while(call: HloCall) -> list[TranslatedTensor]:
    """Unroll the iterations of a loop; calls in them remain calls."""
    values = call.operands
    for _ in range(MAX_ROUNDS):
        goes_on = call.run(call.region(0), values)[0].integer
        if goes_on is None:
            raise UnsupportedOperation("a loop whose number of iterations depends on data")
        if not goes_on:
            return values
        values = call.run(call.region(1), values)
    raise UnsupportedOperation(f"a loop of more than {MAX_ROUNDS} iterations")


def _branch(call: HloCall) -> list[TranslatedTensor]:
    chosen, count = call[0].integer, len(call.operation.regions)
    if chosen is None:
        raise UnsupportedOperation("a branch that depends on data")
    if call.operation.name.endswith(".if"):
        chosen = 1 - chosen
    index = chosen if 0 <= chosen < count else count - 1
    return call.run(call.region(index), [])


CONVERTERS: dict[str, Converter] = {
    "stablehlo.while": _while,
    "stablehlo.case": _branch,
    "stablehlo.if": _branch,
    "sdy.propagation_barrier": same,
}

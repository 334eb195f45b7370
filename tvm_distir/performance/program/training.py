# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Annotate entries of training steps: optimizer states, gradients, updates."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from tvm_distir.core.ir.attributes import IO_ATTR, training_notes
from tvm_distir.core.plan import plain_name

from .parts import Function


def state_kinds(fn: relax.Function) -> dict[str, str]:
    """Return ``state`` or ``host`` for each state of an optimizer, by its plain name."""
    kinds = {plain_name(name): "state" for name in training_notes(fn, "counters")}
    for key, kind in (("states", "state"), ("host", "host")):
        states = training_notes(fn, key).values()
        kinds.update((plain_name(str(name)), kind) for state in states for name in state[:])
    return kinds


def updates(fn: relax.Function, exported: Function) -> tuple[tuple[int, int], ...]:
    """Return the results of an entry, each with the parameter whose memory it takes.

    ``dist.training`` says at which places the whole step returns what is updated; without, it
    returns its loss, then those, in their order.
    """
    updated = dict.fromkeys(plain_name(name) for name in training_notes(fn, "updated"))
    if not updated:
        return ()
    names = {int(position): name for name, position in training_notes(fn, "places").items()}
    full = {i: plain_name(name) for i, name in names.items()} or dict(enumerate(updated, 1))
    io = fn.attrs[IO_ATTR]
    positions = {plain_name(str(item["name"])): k for k, item in enumerate(io["inputs"][:])}
    params = frozenset(exported.params)
    pairs = []
    for number, item in enumerate(io["outputs"][:]):
        name = full.get(int(item["index"]), "")
        if "name" in item:  # of a pipelined step written out
            name = plain_name(str(item["name"]))
        param = positions.get(name) if name in updated else None
        if param is not None and _alike(exported, number, param, params):
            pairs.append((number, param))
    return tuple(pairs)


def _alike(exported: Function, result: int, param: int, params: Container[int]) -> bool:
    result_value, other = (
        exported.values[exported.results[result]],
        exported.values[exported.params[param]],
    )
    return result_value.bytes == other.bytes and exported.results[result] not in params


def with_gradients(fn: relax.Function, exported: Function) -> Function:
    """Mark values as gradients of weights, while they still have their names."""
    names = {str(name) for name in training_notes(fn, "gradients").values()}
    old_values: Sequence[Any] = exported.values
    if not names.intersection(value.name for value in old_values):
        return exported
    values = tuple(
        value._replace(role="gradient")
        if value.name in names and value.role == "activation"
        else value
        for value in old_values
    )
    return replace(exported, values=values)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write attributes of functions of shards: a port says of which array a shard is a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import ir

from .text import integers, string, symbol

PREFIX = "tvm_distir"
"""The prefix of attributes and composites that only this package reads."""
NUM_INPUT = f"{PREFIX}.num_input"
"""The attribute of a function with the number of leading data arguments."""
PORT = f"{PREFIX}.port"
"""The attribute of an argument or a result of a local program."""


@dataclass(frozen=True)
class PortNotes:
    """Attributes of the arguments and results of an entry function, as text."""

    inputs: list[str]
    outputs: list[str]


def port_notes(io: ir.Map, grid_of: Callable[[ir.Map], str]) -> PortNotes:
    """Return the attributes that represent ``dist.io``.

    Parameters
    ----------
    io : mapping
        The attribute.
    grid_of : callable
        Name of the mesh that an input or output is placed on.
    """
    sides = ([_note(port, grid_of(port)) for port in io[side]] for side in ("inputs", "outputs"))
    return PortNotes(*sides)


def _note(port: ir.Map, grid: str) -> str:
    note = f"grid = {symbol(grid)}, index = {int(port['index'])} : i64"
    note += f", placement = {string(str(port['placement']))}"
    if "role" in port:
        note += f", role = {string(str(port['role']))}"
    if "index_range" in port:
        note += f", index_range = {integers(port['index_range'])}"
    return f"{PORT} = {{{note}, shape = {integers(port['shape'])}}}"

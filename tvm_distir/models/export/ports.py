# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Annotate how full arrays become the arguments of a local program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .grid import PREFIX
from .text import integers, string, symbol

PORT = f"{PREFIX}.port"
"""The attribute of an argument or a result of a local program."""


@dataclass(frozen=True)
class PortNotes:
    """Attributes of the arguments and results of an entry function, as text."""

    inputs: list[str]
    outputs: list[str]


def port_notes(io: Any, grid_of: Callable[[Any], str]) -> PortNotes:
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


def _note(port: Any, grid: str) -> str:
    said = f"grid = {symbol(grid)}, index = {int(port['index'])} : i64"
    said += f", placement = {string(str(port['placement']))}"
    if "role" in port:
        said += f", role = {string(str(port['role']))}"
    if "index_range" in port:
        said += f", index_range = {integers(port['index_range'])}"
    return f"{PORT} = {{{said}, shape = {integers(port['shape'])}}}"

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""How whole arrays become the arguments of a local program, for a dialect without words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .functions import fault
from .grid import PREFIX
from .text import integers, string

PORT = f"{PREFIX}.port"
"""The attribute of an argument or a result of a local program."""
_SAID = {"index", "name", "shape", "dtype", "placement", "role"}


@dataclass(frozen=True)
class PortNotes:
    """Attributes of the arguments and results of an entry function, as text."""

    inputs: list[str]
    outputs: list[str]


def port_notes(io: Any, grid: str) -> PortNotes:
    """Attributes that say what ``dist.io`` does, on a grid.

    Raises
    ------
    ModelError
        DIST0380 an input or output that lies on another mesh.
    """
    sides = ([_note(port, grid) for port in io[side]] for side in ("inputs", "outputs"))
    return PortNotes(*sides)


def _note(port: Any, grid: str) -> str:
    other = sorted(set(map(str, port)) - _SAID)
    if other:
        title = str(port.get("name", f"output {port['index']}"))
        raise fault("main", f'"{title}" has a {other[0]} of its own, not that of the program')
    said = f"grid = @{grid}, index = {int(port['index'])} : i64"
    said += f", placement = {string(str(port['placement']))}"
    if "role" in port:
        said += f", role = {string(str(port['role']))}"
    return f"{PORT} = {{{said}, shape = {integers(port['shape'])}}}"

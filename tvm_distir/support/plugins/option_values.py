# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse the values of options."""

from __future__ import annotations

import math
import re

from tvm_distir.support.errors.tree import MeshError, UsageError
from tvm_distir.support.errors.user_input import (
    MAX_DEVICES,
    MAX_INT,
    parse_float,
    parse_int,
    shortened,
)

_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MESH_REMEDY = "Write axes and sizes, major first: --mesh dp=2,tp=4."
_SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def parse_mesh(text: str, option: str = "--mesh") -> dict[str, int]:
    """Read ``dp=2,tp=4``.

    Returns
    -------
    axes : dict of str to int
        Sizes by axis name, major first.

    Raises
    ------
    UsageError
        DIST0152 where the text does not have the form ``name=size,...`` or repeats an axis.
    MeshError
        DIST0201 for no axis, or a size that is not a positive integer.
    """
    if not text.strip():
        raise MeshError("DIST0201", "the mesh has no axis", location=option, remedy=MESH_REMEDY)
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (word.strip() for word in part.partition("="))
        if not equals or not _AXIS.fullmatch(name):
            problem = f'"{shortened(part)}" is not an axis and its size'
            raise UsageError("DIST0152", problem, location=option, remedy=MESH_REMEDY)
        if name in axes:
            problem = f'the axis "{name}" is given twice'
            remedy = "Give each axis a unique name."
            raise UsageError("DIST0152", problem, location=option, remedy=remedy)
        count = parse_int(size, 1)
        if count is None:
            problem = (
                f'axis "{name}" has size "{shortened(size)}", which is not a positive integer '
                f"of at most {MAX_INT}"
            )
            raise MeshError("DIST0201", problem, location=option, remedy=MESH_REMEDY)
        axes[name] = count
    if math.prod(axes.values()) > MAX_DEVICES:
        problem = f"a mesh of {' x '.join(map(str, axes.values()))} devices is too large"
        remedy = f"A mesh has at most {MAX_DEVICES:,} devices."
        raise MeshError("DIST0201", problem, location=option, remedy=remedy)
    return axes


def _parse_integer(
    text: str, option: str, kind: str, remedy: str, least: int, most: int = MAX_INT
) -> int:
    """Read an integer of a range, of which ``kind`` is the name (UsageError DIST0152)."""
    number = parse_int(text, least, most)
    if number is None:
        problem = f'"{shortened(text)}" is not {kind}'
        raise UsageError("DIST0152", problem, location=option, remedy=remedy)
    return number


def parse_count(text: str, option: str, remedy: str = "") -> int:
    """Read a positive integer (UsageError DIST0152)."""
    remedy = remedy or f"Give a positive integer, e.g. {option} 8."
    return _parse_integer(text, option, f"a positive integer of at most {MAX_INT}", remedy, 1)


def parse_dims(items: list[str] | None, option: str = "--dim") -> dict[str, int]:
    """Read sizes of dims: ``NAME=SIZE`` each, several joined by commas too.

    Raises
    ------
    UsageError
        DIST0152 for another form, no size, or a repeated name.
    """
    dims: dict[str, int] = {}
    for item in (part for text in items or [] for part in text.split(",")):
        name, equals, text = (word.strip() for word in item.rpartition("="))
        size = parse_int(text, 1)
        problem = None
        if not name or not equals:
            problem = f'"{shortened(item)}" is not NAME=SIZE'
        elif size is None:
            problem = f"{shortened(name)}={shortened(text)} is not a positive integer"
        elif name in dims:
            problem = f'the dim "{shortened(name)}" is given twice'
        if problem is not None or size is None:
            raise UsageError(
                "DIST0152", str(problem), location=option, remedy=f"Write e.g. {option} seq=1024."
            )
        dims[name] = size
    return dims


def parse_number(text: str, option: str) -> float:
    """Read a finite number (UsageError DIST0152)."""
    number = parse_float(text)
    if not math.isfinite(number):
        problem = f'"{shortened(text)}" is not a number'
        remedy = f"Give a number, e.g. {option} 1.0."
        raise UsageError("DIST0152", problem, location=option, remedy=remedy)
    return number


def parse_numbers(text: str, option: str) -> list[float]:
    """Read finite numbers, joined by commas (UsageError DIST0152)."""
    return [parse_number(part, option) for part in text.split(",")]


def parse_amount(text: str, option: str) -> float:
    """Read a number with an optional K, M, B or T, as in ``1.5T`` (UsageError DIST0152)."""
    scale = _SCALES.get(text[-1:].upper(), 1.0)
    return parse_number(text[:-1] if scale > 1 else text, option) * scale


def parse_bytes(text: str, option: str) -> int:
    """Read a number of bytes, 0 or more (UsageError DIST0152)."""
    remedy = f"Give an integer, e.g. {option} 26214400; 0 disables it."
    return _parse_integer(text, option, "a number of bytes", remedy, 0)


def parse_bucket(text: str, option: str) -> int | str:
    """Read the size of buckets: a number of bytes, or ``unit``."""
    return text if text == "unit" else parse_bytes(text, option)


def parse_seed(text: str, option: str) -> int:
    """Read a seed: an integer from 0 to 2^32 - 1."""
    remedy = f"Give a seed, e.g. {option} 0."
    return _parse_integer(text, option, "an integer from 0 to 4294967295", remedy, 0, 2**32 - 1)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent the text of an MLIR module as operations, blocks, types and attributes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class TensorType:
    """Tensor type such as ``tensor<4x8xf32>``, with None for a dim of unknown size.

    Attributes
    ----------
    shape : tuple of int or None
    element : str
        MLIR's word, ``f32`` or ``i1``.
    """

    shape: tuple[int | None, ...]
    element: str

    def __str__(self) -> str:
        dims = "".join(f"{'?' if n is None else n}x" for n in self.shape)
        return f"tensor<{dims}{self.element}>"


@dataclass(frozen=True)
class OtherType:
    """Other type, kept as its text."""

    text: str

    def __str__(self) -> str:
        return self.text


Type = TensorType | OtherType


@dataclass(frozen=True)
class Symbol:
    """Symbol reference ``@name``."""

    name: str


@dataclass(frozen=True)
class Opaque:
    """Dialect attribute kept as its text, such as ``#sdy.sharding<...>``."""

    name: str
    body: str


@dataclass(frozen=True)
class Dense:
    """Typed ``dense<...>``; ``values`` has a single element if all are equal."""

    values: npt.NDArray[np.generic]
    type: TensorType


@dataclass
class Argument:
    """Argument of a block: its name with ``%``, type, attributes and location."""

    name: str
    type: Type
    attributes: dict[str, Any] = field(default_factory=dict)
    location: str = ""


@dataclass
class RegionBlock:
    """Block of a region."""

    arguments: list[Argument]
    operations: list[Operation]


@dataclass
class Operation:
    """Operation, independent of the form of its text.

    Attributes
    ----------
    name : str
        The name with its dialect: ``stablehlo.add``.
    operands, results : list of str
        The names of values, with ``%``; ``%3#1`` is the second of several results.
    attributes : dict
        The attributes by the names of the generic form.
    regions : list of RegionBlock
        The regions, each a single block.
    line : int
        The line of the text.
    location : str
        The content of ``loc(...)``, not resolved.
    """

    name: str
    operands: list[str] = field(default_factory=list)
    operand_types: list[Type] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    result_types: list[Type] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: list[RegionBlock] = field(default_factory=list)
    line: int = 0
    location: str = ""


@dataclass
class Module:
    """Module with its operations (functions, meshes), attributes, and locations by alias."""

    operations: list[Operation]
    attributes: dict[str, Any]
    locations: dict[str, str]


def operations_of(
    operations: Iterable[Operation], closed: Container[str] = ()
) -> Iterator[Operation]:
    """Return operations and those in their regions, each before what is in it.

    ``closed`` names operations whose regions are left out.
    """
    for operation in operations:
        yield operation
        for region in operation.regions if operation.name not in closed else ():
            yield from operations_of(region.operations, closed)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name arguments, and decide which of them are weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tvm_distir.models.export.port_attributes import NUM_INPUT
from tvm_distir.models.mlir.attributes import read_name
from tvm_distir.models.mlir.tree import Operation, Type
from tvm_distir.support import ModelError, nearest, parse_int

from .translated_values import cleaned

_ROOT = re.compile(r"[\[.]")
"""What the name of a structure ends with, in those of its parts: ``batch['x']``, ``data.0``."""

_KEYS = ("tensor<2xui32>", "tensor<4xui32>")
"""The types of keys of ``jax.random``, which have no batch."""


@dataclass(frozen=True)
class Signature:
    """Parameters of a function.

    Attributes
    ----------
    titles : list of str
        Names in the order of the text.
    order : list of int
        Places in the text: data first, then weights.
    data : int
        The number of parameters that are data.
    """

    titles: list[str]
    order: list[int]
    data: int


class ArgumentNames:
    """Namer of arguments.

    Parameters
    ----------
    locations : mapping of str to str
        Locations of the module, by alias.
    data : collection of str, or None
        Names of the arguments that are data, or of structures such as ``batch`` all of whose parts
        are. None: those that are no part of a structure and, where results have the same parts as a
        structure (a state that a step replaces), all other structures that have a batch; keys of
        random numbers are none.
    location : str
        The name of the text in errors.
    """

    def __init__(
        self, locations: Mapping[str, str], data: Collection[str] | None, location: str
    ) -> None:
        self._locations = locations
        self._data = None if data is None else {cleaned(name) for name in data}
        self._location = location

    def of(self, function: Operation) -> Signature:
        """Return the names and order of a function's arguments.

        Raises
        ------
        ModelError
            DIST0373 data is named that the function does not have.
        """
        given_names = [
            read_name(argument.location, self._locations)
            for argument in function.regions[0].arguments
        ]
        count = _count(function)
        titles = _distinct([cleaned(name) or f"arg{i}" for i, name in enumerate(given_names)])
        if self._data is None and count is not None and 0 <= count <= len(titles):
            return Signature(titles, list(range(len(titles))), count)
        if self._data is None:
            arguments = _data_arguments(function, given_names)
            types = [str(argument.type) for argument in function.regions[0].arguments]
            data = [i for i, name in enumerate(given_names) if _root(name) in arguments]
            data = [i for i in data if types[i] not in _KEYS]
        else:
            roots = [cleaned(_root(name)) for name in given_names]
            named = [{title, root} for title, root in zip(titles, roots, strict=True)]
            data = [i for i, names in enumerate(named) if names & self._data]
            for name in sorted(self._data.difference(*named)):
                problem = f'there is no argument "{name}"'
                remedy = nearest(name, titles)
                raise ModelError("DIST0373", problem, location=self._location, remedy=remedy)
        weights = [i for i in range(len(titles)) if i not in set(data)]
        return Signature(titles, data + weights, len(data))


def _root(name: str) -> str:
    return _ROOT.split(name)[0]


def _data_arguments(function: Operation, names: list[str]) -> set[str]:
    """Return the arguments that are no structures, and the structures that are data.

    These are looked for only where results replace a structure: have its parts, by path and type,
    as the state that a step returns or the gradients of weights. Then all others are data whose
    parts, besides numbers and keys of random numbers, share their first size.
    """
    block = function.regions[0]
    notes = function.attributes.get("res_attrs") or []
    types = block.operations[-1].operand_types if block.operations else []
    results = {
        (str(note.get("jax.result_info")), str(ty)) for note, ty in zip(notes, types, strict=False)
    }
    parts: dict[str, list[tuple[str, Type]]] = {}
    for name, argument in zip(names, block.arguments, strict=True):
        parts.setdefault(_root(name), []).append((name[len(_root(name)) :], argument.type))
    plain = {name for name in names if not _ROOT.search(name)}
    unmatched = [r for r in parts if r not in plain and not _are_among(parts[r], results)]
    if len(unmatched) + len(plain) == len(parts):
        return plain
    kinds = {r: [ty for _, ty in parts[r] if str(ty) not in _KEYS] for r in unmatched}
    sizes = {r: {getattr(ty, "shape", ())[:1] for ty in kinds[r]} - {()} for r in unmatched}
    return plain | {r for r, firsts in sizes.items() if len(firsts) <= 1}


def _are_among(leaves: list[tuple[str, Type]], results: set[tuple[str, str]]) -> bool:
    """Return whether all leaves of a structure are results, with one prefix of their paths."""
    first = leaves[0][0]
    prefixes = {path.removesuffix(first) for path, _ in results if path.endswith(first)}
    return any(results.issuperset((p + path, str(ty)) for path, ty in leaves) for p in prefixes)


def _count(function: Operation) -> int | None:
    """Return the number of data arguments, by an attribute or XLA's field for it."""
    notes = function.attributes.get("mhlo.frontend_attributes")
    count = (notes if isinstance(notes, dict) else function.attributes).get(NUM_INPUT)
    if isinstance(count, str):
        return parse_int(count)
    return count if type(count) is int else None


def _distinct(names: list[str]) -> list[str]:
    """Make names distinct by numbering duplicates."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name] - 1}")
    return result

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check JSON values on access, and report a wrong value by its path.

>>> found = JsonValue(data, "plan.json", refuse).object(("name", "start"), optional=("start",))
>>> found["name"].text()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tvm_distir.support.errors.tree import DistIRError
from tvm_distir.support.errors.user_input import nearest, shortened

from .json_types import LARGEST
from .models import Refuse, shown


class JsonValue:
    """A value with its place.

    Parameters
    ----------
    data : value
        The data, as ``json.loads`` returns it.
    place : str
        The file, and the keys that lead to the value: ``plan.json/rules/0/param``.
    refuse : callable
        Makes the error that every check below raises.

    Attributes
    ----------
    fix : str
        The remedy for a missing key.
    """

    def __init__(self, data: Any, place: str, refuse: Refuse, fix: str = "Give it.") -> None:
        self.data, self.place, self._refuse, self.fix = data, place, refuse, fix

    def wrong(self, what: str, remedy: str) -> DistIRError:
        """Make the error of this value."""
        return self._refuse(self.place, what, remedy)

    def _at(self, key: Any) -> JsonValue:
        return JsonValue(self.data[key], f"{self.place}/{key}", self._refuse, self.fix)

    def object(self, keys: Iterable[str] | None = None, optional: Iterable[str] = ()) -> JsonValue:
        """Return the value, if it is an object with exactly these keys (any, when None).

        ``optional`` keys may be missing; of an unknown key the nearest is reported.
        """
        if not isinstance(self.data, Mapping):
            raise self.wrong(f"{shown(self.data)} is not an object", "Give an object: {...}.")
        if keys is None:
            return self
        known, may_lack = tuple(keys), set(optional)
        for key in self.data:
            if key not in known:
                raise self._refuse(
                    f"{self.place}/{key}", f'unknown key "{key}"', nearest(str(key), known)
                )
        for key in known:
            if key not in self.data and key not in may_lack:
                raise self._refuse(f"{self.place}/{key}", "a key is missing", self.fix)
        return self

    def __getitem__(self, key: str) -> JsonValue:
        """Return the value of a key of an object."""
        return self._at(key)

    def __contains__(self, key: str) -> bool:
        """Return whether an object has a key."""
        return key in self.data

    def fields(self) -> Iterator[tuple[str, JsonValue]]:
        """Return the keys and values of an object."""
        for key in self.object().data:
            yield str(key), self._at(key)

    def items(self) -> list[JsonValue]:
        """Return the values of a list."""
        if not isinstance(self.data, list | tuple):
            raise self.wrong(f"{shown(self.data)} is not a list", "Give a list: [...].")
        return [self._at(i) for i in range(len(self.data))]

    def text(self, empty: bool = False) -> str:
        """Return a string, which may be empty only if that is allowed."""
        if not isinstance(self.data, str) or not (self.data or empty):
            raise self.wrong(f"{shown(self.data)} is not a string", "Give a string in quotes.")
        return self.data

    def word(self, known: Sequence[str]) -> str:
        """Return one of the given words."""
        if not isinstance(self.data, str) or self.data not in known:
            raise self.wrong(f"{shown(self.data)} is not an allowed value", self._nearest(known))
        return self.data

    def _nearest(self, known: Sequence[str]) -> str:
        return nearest(shortened(self.data), known)

    def flag(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.data, bool):
            raise self.wrong(f"{shown(self.data)} is not true or false", "Give true or false.")
        return self.data

    def integer(self, least: int = 0, most: int = LARGEST) -> int:
        """Return an integer within bounds."""
        data = self.data
        if isinstance(data, bool) or not isinstance(data, int) or not least <= data <= most:
            first = "-2**60" if least == -LARGEST else least
            last = "2**60" if most == LARGEST else most
            what = f"{shown(data)} is not an integer from {first} to {last}"
            raise self.wrong(what, "Give such an integer.")
        return data

    def integers(self, least: int = 0, most: int = LARGEST) -> tuple[int, ...]:
        """Return a list of integers within bounds."""
        data = self.data
        if isinstance(data, list) and {*map(type, data)} <= {int}:
            if not data or (least <= min(data) and max(data) <= most):
                return tuple(data)
        return tuple(item.integer(least, most) for item in self.items())

    def number(self, least: float | None = None) -> float:
        """Return a finite number that is positive, or at least ``least``."""
        data = self.data
        number = isinstance(data, int | float) and not isinstance(data, bool)
        if not number or abs(data) > LARGEST or not math.isfinite(data):
            raise self.wrong(f"{shown(data)} is not a number", "Give a finite number.")
        if data < (0.0 if least is None else least) or (least is None and data == 0):
            bound = "above 0" if least is None else f"of at least {least:g}"
            raise self.wrong(f"{data!r} is out of range", f"Give a number {bound}.")
        return float(data)

    def version(self, supported: int) -> None:
        """Refuse another schema version than this package reads."""
        if isinstance(self.data, bool) or self.data != supported:
            raise self.wrong(
                f"the schema version is {shown(self.data)}", f"Use schema version {supported}."
            )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define types of values in JSON files, with which dataclasses that are read are annotated.

Constraints are those of ``annotated_types``; :mod:`.models` reads the dataclasses with pydantic,
which is imported only there.

>>> @dataclass(frozen=True)
... class Mesh:
...     name: Text
...     shape: tuple[Count, ...] = ()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval, MinLen

from tvm_distir.support.errors.user_input import nearest, shortened

LARGEST = 1 << 60
"""Bound of integers: sums of a few still fit in 64 bits."""

Text = Annotated[str, MinLen(1)]
Count = Annotated[int, Interval(ge=0, le=LARGEST)]
PositiveCount = Annotated[int, Interval(ge=1, le=LARGEST)]
Integer = Annotated[int, Interval(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Interval(gt=0, le=LARGEST)]
NotNegative = Annotated[float, Interval(ge=0, le=LARGEST)]
Fraction = Annotated[float, Interval(gt=0, le=1)]


class InvalidValue(ValueError):
    """A value that a :class:`Check` refuses.

    Parameters
    ----------
    what, remedy : str
        The fault and its remedy.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


@dataclass(frozen=True)
class Check:
    """Constraint of a type: a function that returns the value, or raises :class:`InvalidValue`."""

    function: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self.function, handler(source))


@dataclass(frozen=True)
class Keys:
    """Constraint of a mapping: its keys, each with the type of its value; some may be missing."""

    types: Mapping[str, Any]
    optional: Collection[str] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import typed_dict_field, typed_dict_schema

        fields = {
            key: typed_dict_field(handler.generate_schema(kind), required=key not in self.optional)
            for key, kind in self.types.items()
        }
        return typed_dict_schema(fields, extra_behavior="forbid")


def one_of(words: Collection[str]) -> Check:
    """Constrain a string to some words, of which the nearest is suggested."""

    def known(word: str) -> str:
        if word not in words:
            raise InvalidValue(f"{shortened(word)!r} is not an allowed value", nearest(word, words))
        return word

    return Check(known)

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
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval, MinLen

from tvm_distir.support.errors.tree import DistIRError
from tvm_distir.support.errors.user_input import nearest, shortened

if TYPE_CHECKING:
    from pydantic import ConfigDict, GetCoreSchemaHandler
    from pydantic_core import CoreConfig, CoreSchema

LARGEST = 1 << 60
"""Bound of integers: sums of a few still fit in 64 bits."""

STRICT: ConfigDict = {"strict": True, "allow_inf_nan": False, "extra": "forbid"}
"""pydantic's configuration: ``1.0`` and ``"1"`` are not integers, and unknown keys are refused."""
OTHER_KEYS: ConfigDict = {**STRICT, "extra": "ignore"}
"""``__pydantic_config__`` of a dataclass that ignores unknown keys."""

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
    problem, remedy : str
        The fault and its remedy.
    error : DistIRError, optional
        The error that the function raised instead.
    """

    def __init__(self, problem: str, remedy: str, error: DistIRError | None = None) -> None:
        super().__init__(problem)
        self.what, self.remedy, self.error = problem, remedy, error


@dataclass(frozen=True)
class Check:
    """Constraint of a type: a function that returns the value, or another one in its place.

    The function raises :class:`InvalidValue`, or a DistIRError.
    """

    function: Callable[[Any], object]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: object) -> object:
        try:
            return self.function(value)
        except DistIRError as error:
            raise InvalidValue(error.what, error.remedy, error) from None


@dataclass(frozen=True, eq=False)
class Keys:
    """Constraint of a mapping: its keys, each with the type of its value; some may be missing.

    Other keys are refused, or ignored where ``others`` says so.
    """

    types: Mapping[str, object]
    optional: Collection[str] = ()
    others: Literal["forbid", "ignore"] = "forbid"

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core.core_schema import typed_dict_field, typed_dict_schema

        fields = {
            key: typed_dict_field(handler.generate_schema(kind), required=key not in self.optional)
            for key, kind in self.types.items()
        }
        numbers: CoreConfig = {"strict": True, "allow_inf_nan": False}
        return typed_dict_schema(fields, extra_behavior=self.others, config=numbers)


@dataclass(frozen=True)
class KeysByKind:
    """Constraint of a mapping: :class:`Keys` for each value of its key ``kind``."""

    keys: Mapping[str, Keys]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core.core_schema import tagged_union_schema

        choices = {
            kind: handler.generate_schema(Annotated[Mapping[str, Any], keys])
            for kind, keys in self.keys.items()
        }
        return tagged_union_schema(choices, discriminator="kind")


def one_of(words: Collection[str]) -> Check:
    """Constrain a string to some words, of which the nearest is suggested."""

    def known(word: str) -> str:
        if word not in words:
            raise InvalidValue(f"{shortened(word)!r} is not an allowed value", nearest(word, words))
        return word

    return Check(known)

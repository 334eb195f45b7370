# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Keep the values of methods in the objects that have them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from .recursion import Steps

Owner = TypeVar("Owner")
Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


def memoized(
    method: Callable[Concatenate[Owner, Arguments], Value],
) -> Callable[Concatenate[Owner, Arguments], Value]:
    """Compute a method once per object and arguments, which are hashable.

    The values are in the object's ``__dict__``, and go with it. A call that raises is repeated.

    Examples
    --------
    >>> class Squares:
    ...     @memoized
    ...     def of(self, number):
    ...         print("computed")
    ...         return number * number
    >>> squares = Squares()
    >>> squares.of(3) + squares.of(3)
    computed
    18
    """
    name = f"_values_of_{method.__name__}"

    @functools.wraps(method)
    def value_of(owner: Owner, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Value:
        values: dict[tuple[object, ...], Value] = owner.__dict__.setdefault(name, {})
        key = (*arguments, *options.items()) if options else arguments
        if key not in values:
            values[key] = method(owner, *arguments, **options)
        return values[key]

    return value_of


def memoized_steps(
    method: Callable[Concatenate[Owner, Arguments], Steps[Value]],
) -> Callable[Concatenate[Owner, Arguments], Steps[Value]]:
    """Run a recursive method of :mod:`.recursion` once per object and positional arguments."""
    name = f"_values_of_{method.__name__}"

    @functools.wraps(method)
    def value_of(
        owner: Owner, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Steps[Value]:
        values: dict[tuple[object, ...], Value] = owner.__dict__.setdefault(name, {})
        if arguments not in values:
            values[arguments] = yield from method(owner, *arguments, **options)
        return values[arguments]

    return value_of

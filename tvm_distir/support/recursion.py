# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run recursions that are as deep as a user's program, which Python's own stack does not hold."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")
Steps = Generator[Any, Any, Result]
"""A recursive function as a generator: it yields the generator of each call that it makes, and is
sent its result."""


def unrolled(steps: Steps[Result]) -> Result:
    """Return the result of a recursive function, whose calls are on an explicit stack.

    Examples
    --------
    >>> def depth(branches):
    ...     deepest = 0
    ...     for branch in branches:
    ...         deepest = max(deepest, (yield depth(branch)))
    ...     return deepest + 1
    >>> unrolled(depth([[], [[]]]))
    3
    """
    try:
        next(resumable(steps))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a recursion yields calls only")


def resumable(steps: Steps[Result]) -> Generator[None, None, Result]:
    """Run a recursive function as :func:`unrolled` does, and pause wherever it yields None."""
    stack: list[Steps[object]] = [steps]
    value: Any = None
    while stack:
        try:
            call = stack[-1].send(value)
        except StopIteration as end:
            stack.pop()
            value = end.value
            continue
        value = None
        if call is None:
            yield
        else:
            stack.append(call)
    return value  # type: ignore[no-any-return]

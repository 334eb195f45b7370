# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect values by their keys."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def lists_by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Collect the values of each key in their order; keys are in the order of their first value.

    Examples
    --------
    >>> lists_by_key((len(word), word) for word in ("tp", "dp", "pipe", "ep"))
    {2: ['tp', 'dp', 'ep'], 4: ['pipe']}
    """
    lists: dict[Key, list[Value]] = {}
    for key, value in pairs:
        lists.setdefault(key, []).append(value)
    return lists

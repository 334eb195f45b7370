# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect what can be reached from somewhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reachable(starts: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """Return the starts and all that follows them, directly or not; the nearest come first.

    Examples
    --------
    >>> reachable([12], lambda n: (k for k in (2, 3) if n % k == 0 and k < n))
    [12, 2, 3]
    """
    nodes = list(dict.fromkeys(starts))
    known = set(nodes)
    for node in nodes:  # which grows
        for other in following(node):
            if other not in known:
                known.add(other)
                nodes.append(other)
    return nodes

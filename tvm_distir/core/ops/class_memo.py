# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Memoises results of passes for classes of equal bindings, across modules.

A search lowers thousands of plans of a model; results for a binding are valid for all bindings of
its class, :attr:`~.Reading.like`, whose numbers are the same in all modules of a process and are
never given twice.
"""

from __future__ import annotations

from typing import Any

from .registry import generation, load_entry_points

MOST = 1 << 16
"""Entries of all memories together; with more they are emptied on the next request."""

_memories: dict[Any, dict[Any, Any]] = {}
_seen_generation = 0


def learned(what: Any) -> dict[Any, Any]:
    """Return the memory of a name; it is emptied whenever a rule is registered.

    Ask for it once per module, and keep in it only what follows from the class of a binding, from
    the name of the memory, and from the rest of the entry's key.

    Parameters
    ----------
    what : hashable
        The name of what is stored, with all that it depends on beside its keys.
    """
    global _seen_generation
    load_entry_points()
    if _seen_generation != generation() or sum(map(len, _memories.values())) > MOST:
        _memories.clear()
        _seen_generation = generation()
    return _memories.setdefault(what, {})

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Memoises results of passes for classes of equal bindings, across modules.

A search lowers thousands of plans of a model; results for a binding are valid for all bindings of
its class, ``Reading.like``, whose numbers are the same in all modules of a process and are
never given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from tvm_distir.core.rewriting.native.function_index import FunctionView

from .registry import generation, load_entry_points

MOST = 1 << 16
"""Entries of all memories together; with more they are emptied on the next request."""

_UNKNOWN: Any = object()


class ClassMemo(dict[Any, Any]):
    """A memory of what holds for classes of equal bindings.

    A key is the number of a class, or a tuple that begins with it; what is computed for a binding
    of no class, which has a negative number, is not kept.
    """

    def of(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Return what holds for a key, which is computed when it is first asked for."""
        result = self.get(key, _UNKNOWN)
        if result is _UNKNOWN:
            result = compute()
            if (key if type(key) is int else key[0]) >= 0:
                self[key] = result
        return result


_memories: dict[Hashable, ClassMemo] = {}
_seen_generation = 0


def class_memo(key: Hashable) -> ClassMemo:
    """Return the memory of a name; it is emptied whenever a rule is registered.

    Ask for it once per module, and keep in it only what follows from the class of a binding, from
    the name of the memory, and from the rest of the entry's key.

    Parameters
    ----------
    key : hashable
        The name of what is stored, with all that it depends on beside its keys.
    """
    global _seen_generation
    load_entry_points()
    if _seen_generation != generation() or sum(map(len, _memories.values())) > MOST:
        _memories.clear()
        _seen_generation = generation()
    return _memories.setdefault(key, ClassMemo())


def class_facts(view: FunctionView, key: Hashable, fact: Callable[[int], Any]) -> list[Any]:
    """Return a fact per binding of a function, which is computed once per class.

    Parameters
    ----------
    view : FunctionView
    key : hashable
        The name of the memory, see :func:`class_memo`.
    fact : callable
        Computes the fact from the number of a binding.
    """
    memo = class_memo(key)
    facts = [memo.get(like, _UNKNOWN) for like in view.like]
    for number, known in enumerate(facts):
        if known is _UNKNOWN:
            facts[number] = memo.of(view.like[number], partial(fact, number))
    return facts

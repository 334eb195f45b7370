# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give each thread separate scopes of TVM: block builders that write, and tags of operators.

TVM keeps both in variables of the process. ``BlockBuilder.current()`` is what ops of
``relax.frontend.nn`` emit into, so that threads would emit into the functions of others, and
legalization enters a scope for the tag of an operator, in which no other may be entered.
"""

from __future__ import annotations

import threading
from typing import Any

from tvm import relax
from tvm.te.tag import TagScope

from tvm_distir.support import builder_stack, replace_builder_stack


class _Stack(threading.local):
    """List whose content depends on the thread."""

    def __init__(self) -> None:
        self._builders: list[relax.BlockBuilder] = []

    def __len__(self) -> int:
        return len(self._builders)

    def __getitem__(self, position: int) -> relax.BlockBuilder:
        return self._builders[position]

    def append(self, builder: relax.BlockBuilder) -> None:
        """Append a builder."""
        self._builders.append(builder)

    def pop(self) -> relax.BlockBuilder:
        """Remove and return the last builder."""
        return self._builders.pop()


class _Tag(threading.local):
    """Scope that the thread is in."""

    scope: Any = None


_tag = _Tag()


def _current(_: object) -> Any:
    if _tag.scope is not None:
        _tag.scope.accessed = True
    return _tag.scope


def _enter(scope: Any) -> Any:
    if _tag.scope is not None:
        raise ValueError(f"the tag {scope.tag} is inside of the tag {_tag.scope.tag}")
    _tag.scope = scope
    return scope


def _exit(scope: Any, *_: object) -> None:
    _tag.scope = None


def separate_scopes() -> None:
    """Replace the scopes of TVM; a builder that is writing stays that of the calling thread."""
    stack = _Stack()
    for builder in builder_stack():
        stack.append(builder)
    replace_builder_stack(stack)
    TagScope.get_current = classmethod(_current)
    TagScope.__enter__, TagScope.__exit__ = _enter, _exit

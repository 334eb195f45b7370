# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Memoize the stages of studies by the content of their inputs."""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar, cast

import tvm
from tvm import ir

from tvm_distir.core.ir import handle
from tvm_distir.core.ops import generation
from tvm_distir.models import Model
from tvm_distir.support import ForkSafeLock, warnings_issued

MOST_STAGES = 64
"""Stages of which a memo keeps the results: those of about four analyses."""
_LOCK = ForkSafeLock()
_PLAIN = (type(None), bool, int, float, str, bytes)

T = TypeVar("T")


class _Entry(NamedTuple):
    """A result, and the objects that its key names by their addresses."""

    kept: list[object]
    result: object


def _copied(value: T) -> T:
    """Return a copy of a module or model, which are mutable; anything else as it is.

    The functions are shared, so that a copy has the content of its original.
    """
    if isinstance(value, ir.IRModule):
        return cast(T, value.clone())
    if isinstance(value, Model):
        return cast(T, replace(value, mod=value.mod.clone()))
    return value


class _UnknownContentError(Exception):
    """An input is of a type whose content is not known: its stage is computed each time."""


class StageMemo:
    """Results of the last stages, by the content of their inputs.

    Options, plans and systems are compared by their values, modules by their functions, which are
    immutable: a module whose functions have been replaced is another one. A stage that warns is
    not kept, so that it warns the next time too, nor is one that instruments of a ``PassContext``
    observe, or one with an input of an unknown type, such as a function.

    Parameters
    ----------
    most : int
        The number of results to keep; the oldest are forgotten first.
    stages : collection of str, optional
        The stages whose results are kept; None: all.
    """

    def __init__(self, most: int = MOST_STAGES, stages: Collection[str] | None = None) -> None:
        self.most = most
        self.stages = stages
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def result(self, stage: str, inputs: object, make: Callable[[], T]) -> T:
        """Return the result of a stage.

        Parameters
        ----------
        stage : str
            The name of the stage.
        inputs : object
            All that its result depends on, beside registered rules and the ``PassContext``.
        make : callable
            Computes the result.
        """
        if self.stages is not None and stage not in self.stages:
            return make()
        key = _Key()
        context = tvm.transform.PassContext.current()
        try:
            if context.instruments:
                raise _UnknownContentError
            key.add((stage, generation(), inputs))
            key.add_address(handle(context), context)
        except _UnknownContentError:
            return make()
        digest = key.digest()
        with _LOCK():
            entry = self._entries.get(digest)
            if entry is not None:
                self._entries.move_to_end(digest)
                return _copied(cast(T, entry.result))
        before = warnings_issued()
        result = make()
        if warnings_issued() == before:
            with _LOCK():
                self._entries[digest] = _Entry(key.kept, _copied(result))
                while len(self._entries) > self.most:
                    self._entries.popitem(last=False)
        return result

    def clear(self) -> None:
        """Forget all results."""
        with _LOCK():
            self._entries.clear()


class _Key:
    """The content of values as text, of which a digest is taken."""

    def __init__(self) -> None:
        self.kept: list[object] = []
        self._text: list[str] = []

    def digest(self) -> bytes:
        """Return the SHA-256 of the content."""
        return hashlib.sha256("".join(self._text).encode(errors="surrogatepass")).digest()

    def add_address(self, address: int, value: object) -> None:
        """Add the identity of an object, which must live as long as the key."""
        self.kept.append(value)
        self._text.append(f"@{address};")

    def add(self, value: Any) -> None:
        """Add the content of a value."""
        kind = type(value)
        if kind in _PLAIN:
            self._text.append(f"{kind.__name__} {value!r};")
        elif isinstance(value, ir.IRModule):
            for part in (value.functions, value.attrs, value.global_infos):
                self.add_address(0 if part is None else handle(part), part)
        else:
            self.add_address(id(kind), kind)
            self._add_parts(_parts(value))

    def _add_parts(self, parts: Iterable[object]) -> None:
        self._text.append("(")
        for part in parts:
            self.add(part)
        self._text.append(")")


def _parts(value: Any) -> Iterable[object]:
    """Return the values that a compound value consists of."""
    kind: Any = type(value)
    names = _field_names(kind)
    if names is not None:
        return [getattr(value, name) for name in names]
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, enum.Enum):
        return (value.name,)
    if isinstance(value, PurePath):
        return (str(value),)
    if isinstance(value, re.Pattern):
        return (value.pattern, value.flags)
    raise _UnknownContentError


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a frozen dataclass; None for another type."""
    parameters = getattr(kind, "__dataclass_params__", None)
    frozen = parameters is not None and parameters.frozen
    return tuple(field.name for field in fields(kind)) if frozen else None


ANALYSIS_MEMO = StageMemo()
"""The memo of all analyses of a process."""

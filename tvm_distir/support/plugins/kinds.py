# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the text notation of option values by type annotation.

=========================================  ====================================================
annotation                                 text
=========================================  ====================================================
``bool``, ``int``, ``float``, ``str``      ``true``, ``8``, ``0.5``, a word or quoted text
``X | None``                               also ``none``
``Literal["a", "b"]``                      one of them
``Sequence[X]``, ``list``, ``tuple``       ``[x, ...]``
a class with ``load(name_or_path)``        that name or path
a dataclass of such fields                 ``{field=value, ...}``
=========================================  ====================================================

Reading gives *plain* values (texts, numbers, bools, None, tuples, dicts), which print back as they
were; an object is made of them only when it is needed.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_distir.support.errors.user_input import nearest, parse_int, shortened

from .notation import ListToken, NamedFields, Term, Token

LARGEST = 2**63 - 1
"""The largest integer: bytes and counts, which native code keeps in 64 bits."""

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_KEYWORDS = (*_TRUE, *_FALSE, "none")


class Unreadable(Exception):
    """The error of a text that is not a value of a type.

    Attributes
    ----------
    expects : str
        A description of the expected text.
    remedy : str
        Any further advice; often empty.
    """

    def __init__(self, expects: str, remedy: str = "") -> None:
        super().__init__(expects)
        self.expects, self.remedy = expects, remedy


@dataclass(frozen=True)
class OptionType:
    """The text notation of the values of a type.

    Attributes
    ----------
    word : str
        The type in a listing: ``int``, ``system``.
    expects : str
        The type in a message: ``an integer``.
    read : callable
        A function from a term to a plain value; it raises :class:`Unreadable`.
    make : callable
        A function from a plain value to the argument of the function.
    """

    word: str
    expects: str
    read: Callable[[Term], object]
    make: Callable[[Any], Any]


def _keep(value: object) -> object:
    return value


def _bare(term: Term, expects: str) -> str:
    """Return a word without quotes."""
    if not isinstance(term, Token) or term.quoted:
        raise Unreadable(expects)
    return term.text


def _read_bool(term: Term) -> bool:
    text = _bare(term, "true or false").lower()
    if text not in _TRUE + _FALSE:
        raise Unreadable("true or false")
    return text in _TRUE


def _read_int(term: Term) -> int:
    number = parse_int(_bare(term, "an integer"), -LARGEST, LARGEST)
    if number is None:
        raise Unreadable("an integer")
    return number


def _read_float(term: Term) -> float:
    text = _bare(term, "a number")
    try:
        value = float(text)
    except ValueError:
        raise Unreadable("a number") from None
    if not math.isfinite(value):
        raise Unreadable("a number")
    return value


def _read_str(term: Term) -> str:
    if not isinstance(term, Token) or not term.text:
        raise Unreadable("a text")
    return term.text


def _read_none(term: Term) -> None:
    if _bare(term, "none").lower() != "none":
        raise Unreadable("none")


_SIMPLE: dict[object, OptionType] = {
    bool: OptionType("bool", "true or false", _read_bool, _keep),
    int: OptionType("int", "an integer", _read_int, _keep),
    float: OptionType("float", "a number", _read_float, _keep),
    str: OptionType("text", "a text", _read_str, _keep),
    type(None): OptionType("none", "none", _read_none, _keep),
}


def kind_of(annotation: object) -> OptionType | None:
    """Return the notation of an annotated type; None if the type has none."""
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _union(arguments)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin in (collections.abc.Sequence, list, tuple):
        is_uniform = len(arguments) == 1 or arguments[1:] == (Ellipsis,)
        return _sequence(arguments[0]) if is_uniform else None
    if isinstance(annotation, type) and hasattr(annotation, "load"):
        return _loaded(annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _record(annotation)
    return None


def _union(members: Sequence[object]) -> OptionType | None:
    """Return the notation of a union, which the first matching member reads."""
    named = any(hasattr(member, "load") for member in members)
    candidates = [kind_of(member) for member in members if not (named and member is str)]
    kinds = [kind for kind in candidates if kind is not None and kind.word != "none"]
    if not kinds or (len(kinds) > 1 and any(kind.make is not _keep for kind in kinds)):
        return None  # which of them a plain value is for would have to be guessed
    optional = type(None) in members
    shown = [*kinds, _SIMPLE[type(None)]] if optional else kinds
    expects = " or ".join(kind.expects for kind in shown)

    def read(term: Term) -> object:
        if optional and term == Token("none"):
            return None
        for kind in kinds[:-1]:
            with contextlib.suppress(Unreadable):
                return kind.read(term)
        try:
            return kinds[-1].read(term)
        except Unreadable as fault:
            raise Unreadable(expects, fault.remedy) from None

    def make(value: object) -> object:
        return value if value is None else kinds[0].make(value)

    return OptionType("|".join(kind.word for kind in shown), expects, read, make)


def _literal(values: Sequence[object]) -> OptionType | None:
    words = [value for value in values if isinstance(value, str)]
    if len(words) < len(values):
        return None
    expects = "one of " + ", ".join(words)

    def read(term: Term) -> str:
        if not isinstance(term, Token) or term.text not in words:
            raise Unreadable(expects)
        return term.text

    return OptionType("|".join(words), expects, read, _keep)


def _sequence(item: object) -> OptionType | None:
    kind = kind_of(item)
    if kind is None:
        return None
    expects = f"a list in brackets, each {kind.expects}"

    def read(term: Term) -> tuple[object, ...]:
        if not isinstance(term, ListToken):
            raise Unreadable(expects)
        return tuple(kind.read(item) for item in term.items)

    def make(value: Sequence[object]) -> tuple[object, ...]:
        return tuple(kind.make(item) for item in value)

    return OptionType(f"[{kind.word},...]", expects, read, make)


def _loaded(cls: Any) -> OptionType:
    word = getattr(cls, "option_word", cls.__name__.lower())
    expects = f"the name or file of a {word}"

    def read(term: Term) -> str:
        if not isinstance(term, Token) or not term.text:
            raise Unreadable(expects)
        return term.text

    def make(value: object) -> object:
        return cls.load(value) if isinstance(value, str) else value

    return OptionType(word, expects, read, make)


def _record(cls: Any) -> OptionType | None:
    hints = typing.get_type_hints(cls)
    candidates = {field.name: kind_of(hints[field.name]) for field in dataclasses.fields(cls)}
    kinds = {name: kind for name, kind in candidates.items() if kind is not None}
    if not kinds:
        return None
    expects = f"{cls.__name__.lower()} in braces, of {', '.join(kinds)}"

    def read(term: Term) -> dict[str, object]:
        if not isinstance(term, NamedFields):
            raise Unreadable(expects)
        values = {}
        for name, value in term.pairs:
            if name not in kinds:
                raise Unreadable(expects, f'There is no "{name}". {nearest(name, kinds)}')
            values[name] = kinds[name].read(value)
        return values

    def make(value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return cls(**{name: kinds[name].make(item) for name, item in value.items()})

    return OptionType(cls.__name__.lower(), expects, read, make)


def as_term(value: Any) -> Term:
    """Write a plain value as text that parses to it."""
    if value is None or isinstance(value, bool):
        return Token(str(value).lower())
    if isinstance(value, int) and abs(value) > LARGEST:  # its digits would be no integer either
        return Token(shortened(value), quoted=True)
    if isinstance(value, int | float):
        return Token(repr(value))
    if isinstance(value, str):
        return Token(value, quoted=value.lower() in _KEYWORDS)
    if isinstance(value, Mapping):
        return NamedFields(tuple((str(name), as_term(item)) for name, item in value.items()))
    return ListToken(tuple(as_term(item) for item in value))

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
r"""Parse names with options in the notation ``bucket{bucket_bytes=1024},split``.

::

    calls  = call ("," call)*
    call   = word [fields]
    fields = "{" [word "=" value ("," word "=" value)*] "}"
    value  = word | quoted | fields | "[" [value ("," value)*] "]"

A word is anything without blanks, quotes and ``,={}[]``; a quoted text, in double quotes, may hold
them too, with ``\"`` and ``\\`` for the two that end it. Blanks between are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from tvm_distir.support.errors.tree import UsageError

_TOKEN = re.compile(
    r'\s*(?:(?P<mark>[,={}\[\]])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[^\s",={}\[\]]+))',
    re.DOTALL,
)
_PLAIN = re.compile(r'[^\s",={}\[\]]+')


@dataclass(frozen=True)
class Token:
    """A token; a quoted token is always a string."""

    text: str
    quoted: bool = False

    def __str__(self) -> str:
        if not self.quoted and _PLAIN.fullmatch(self.text):
            return self.text
        escaped = self.text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'


@dataclass(frozen=True)
class ListToken:
    """Values in brackets."""

    items: tuple[Term, ...]

    def __str__(self) -> str:
        return f"[{','.join(map(str, self.items))}]"


@dataclass(frozen=True)
class NamedFields:
    """Named values in braces."""

    pairs: tuple[tuple[str, Term], ...]

    def __str__(self) -> str:
        return "{" + ",".join(f"{name}={value}" for name, value in self.pairs) + "}"


Term = Token | ListToken | NamedFields


@dataclass(frozen=True)
class Call:
    """A name with its options."""

    name: str
    options: NamedFields = NamedFields(())

    def __str__(self) -> str:
        return f"{self.name}{self.options if self.options.pairs else ''}"


def read_calls(text: str, location: str) -> tuple[Call, ...]:
    """Read names with options.

    Parameters
    ----------
    text : str
    location : str
        The place of the text, for messages.

    Raises
    ------
    UsageError
        DIST0152 where the text breaks the grammar, quoting the rest from there; or gives an
        option twice.
    """
    return _Reader(text, location).calls()


class _Reader:
    def __init__(self, text: str, location: str) -> None:
        self.text, self.location = text, location
        self.at = 0

    def calls(self) -> tuple[Call, ...]:
        calls = [self.call()]
        while self.take(","):
            calls.append(self.call())
        if self.text[self.at :].strip():
            self.fail('"," or the end')
        return tuple(calls)

    def call(self) -> Call:
        return Call(self.word("a name"), self.fields() if self.take("{") else NamedFields(()))

    def fields(self) -> NamedFields:
        pairs: dict[str, Term] = {}
        while not self.take("}"):
            if pairs:
                self.need(",")
            start = self.at
            name = self.word("an option")
            if name in pairs:
                self.at = start
                self.fail("a different option", f'the option "{name}" is given twice')
            self.need("=")
            pairs[name] = self.value()
        return NamedFields(tuple(pairs.items()))

    def value(self) -> Term:
        if self.take("{"):
            return self.fields()
        if self.take("["):
            items: list[Term] = []
            while not self.take("]"):
                if items:
                    self.need(",")
                items.append(self.value())
            return ListToken(tuple(items))
        match = _TOKEN.match(self.text, self.at)
        if match is not None and match["quoted"] is not None:
            self.at = match.end()
            return Token(re.sub(r"\\(.)", r"\1", match["quoted"], flags=re.DOTALL), quoted=True)
        return Token(self.word("a value"))

    def word(self, expected: str) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None or match["word"] is None:
            self.fail(expected)
        self.at = match.end()
        return str(match["word"])

    def take(self, mark: str) -> bool:
        match = _TOKEN.match(self.text, self.at)
        if match is None or match["mark"] != mark:
            return False
        self.at = match.end()
        return True

    def need(self, mark: str) -> None:
        if not self.take(mark):
            self.fail(f'"{mark}"')

    def fail(self, expected: str, problem: str = "") -> NoReturn:
        rest = self.text[self.at :].strip()
        excerpt = f'"{rest[:40]}"' if rest else "the end"
        raise UsageError(
            "DIST0152",
            problem or f"{expected} is expected, not {excerpt}",
            location=self.location,
            remedy="Write name{option=value,...}, with commas between several.",
        )

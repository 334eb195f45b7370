# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse types and attributes, and read the names in locations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .dense import dense_elements
from .scanner import Scanner
from .tree import Dense, Opaque, OtherType, Symbol, TensorType, Type

STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
NAME = re.compile(r"[A-Za-z_][\w$.]*")
SYMBOL = re.compile(r'@(?:[\w$.\-]+|"(?:[^"\\]|\\.)*")(?:::@[\w$.\-]+)*')
VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_DIALECT = re.compile(r"#[A-Za-z_][\w$.]*|#\d+")
_NUMBER = re.compile(r"[+-]?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
_DIMS = re.compile(r"\s*((?:(?:\d+|\?)\s*x\s*)*)(.*)$", re.DOTALL)
_SIMPLE = re.compile(r"(?:s|u)?i\d+\b|f\d+\w*\b|bf16\b|tf32\b|index\b|none\b")
_FIELDS = ("stablehlo.gather", "stablehlo.scatter", "stablehlo.dot", "stablehlo.channel_handle")
"""Attributes that are lists of ``key = value``."""
_LOCATION = re.compile(r'^"((?:[^"\\]|\\.)*)"(?:\s*\(.*\))?$', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([0-9A-Fa-f]{2})|(.))")
_MAX_ALIASES = 8


def read_symbol(scan: Scanner, title: str) -> str:
    """Parse a symbol; return its name without quotes."""
    name = scan.word(SYMBOL, title)[1:]
    return unescaped(name[1:-1]) if name.startswith('"') and name.endswith('"') else name


class Attributes:
    """Parser of types and attributes at the position of a scanner.

    Parameters
    ----------
    scan : Scanner
    """

    def __init__(self, scan: Scanner) -> None:
        self._scan = scan
        self.aliases: dict[str, Any] = {}

    def type(self) -> Type:
        """Parse a type."""
        scan = self._scan
        if scan.take("tensor"):
            return self._tensor(scan.balanced())
        match = scan.match(_SIMPLE)
        if match:
            return OtherType(match.group())
        if scan.peek("!"):
            scan.take("!")
            name = scan.word(NAME, "a type")
            return OtherType(f"!{name}" + (f"<{scan.balanced()}>" if scan.peek("<") else ""))
        if scan.peek("("):
            inputs, results = self.function_type()
            texts = [", ".join(map(str, types)) for types in (inputs, results)]
            return OtherType(f"({texts[0]}) -> ({texts[1]})")
        name = scan.word(NAME, "a type")
        if not scan.peek("<"):
            raise scan.fault(f'"{name}" is not a type')
        return OtherType(f"{name}<{scan.balanced()}>")

    def _tensor(self, body: str) -> TensorType:
        match = _DIMS.match(body)
        words = re.findall(r"\d+|\?", match.group(1)) if match else []
        element = match.group(2).split(",")[0].strip() if match else ""
        if not element or element[0].isdigit() or "*" in element:
            raise self._scan.fault(f"tensor<{body}> is not the type of a tensor of known rank")
        return TensorType(
            tuple(None if w == "?" else self._scan.integer(w) for w in words), element
        )

    def types(self) -> list[Type]:
        """Parse types between parentheses, or a type."""
        scan = self._scan
        return [self.type()] if not scan.take("(") else [self.type() for _ in scan.items(")")]

    def function_type(self) -> tuple[list[Type], list[Type]]:
        """Parse ``(a, b) -> (c)``."""
        inputs = self.types()
        self._scan.expect("->")
        return inputs, self.types()

    def dictionary(self, close: str = "}") -> dict[str, Any]:
        """Parse ``key = value, ...`` up to the closing bracket, after the opening bracket."""
        scan = self._scan
        result: dict[str, Any] = {}
        for _ in scan.items(close):
            quoted = scan.match(STRING)
            key = unescaped(quoted.group(1)) if quoted else scan.word(NAME, "an attribute")
            result[key] = self.value() if scan.take("=") else True
        return result

    def optional(self, *opening: str) -> dict[str, Any]:
        """Parse a dictionary behind what opens it; empty if that is not next."""
        if not self._scan.take(opening[0]):
            return {}
        for literal in opening[1:]:
            self._scan.expect(literal)
        return self.dictionary()

    def value(self, typed: bool = True) -> Any:
        """Parse an attribute.

        Parameters
        ----------
        typed : bool
            Whether ``: type`` may follow a number; not so where a signature begins that way.
        """
        scan = self._scan
        scan.deeper()
        value = self._value(typed)
        scan.higher()
        return value

    def _value(self, typed: bool) -> Any:
        scan = self._scan
        quoted = scan.match(STRING)
        if quoted:
            self._drop_type(typed)
            return unescaped(quoted.group(1))
        if scan.take("["):
            return self._items("]")
        if scan.take("{"):
            return self.dictionary()
        if scan.peek("@"):
            return Symbol(read_symbol(scan, "a symbol"))
        if scan.peek("#"):
            return self._of_dialect()
        number = scan.match(_NUMBER)
        if number:
            self._drop_type(typed)
            text = number.group()
            if "0x" in text:
                return int(text, 16)
            return scan.integer(text) if text.lstrip("+-").isdecimal() else float(text)
        if scan.peek("(") or scan.peek("tensor<") or scan.peek("!"):
            return self.type()
        return self._of_word(scan.word(NAME, "an attribute"), typed)

    def _of_word(self, word: str, typed: bool) -> Any:
        scan = self._scan
        if word in ("true", "false", "unit"):
            self._drop_type(typed)
            return word != "false"
        if word == "array":
            scan.expect("<")
            scan.word(NAME, "a type")
            scan.take(":")
            return self._items(">")
        if word == "dense":
            return self.dense()
        if word == "loc":
            return Opaque("loc", scan.balanced())
        return Opaque(word, scan.balanced()) if scan.peek("<") else word

    def dense(self) -> Dense:
        """Parse the rest of ``dense<...> : type``."""
        scan = self._scan
        body = scan.balanced()
        scan.expect(":")
        kind = self.type()
        if not isinstance(kind, TensorType) or None in kind.shape:
            raise scan.fault(f"elements of the type {kind}")
        shape = tuple(n for n in kind.shape if n is not None)
        try:
            return Dense(dense_elements(body, shape, kind.element), kind)
        except (ValueError, OverflowError) as error:
            raise scan.fault(str(error)) from error

    def _items(self, close: str) -> list[Any]:
        return [self.value() for _ in self._scan.items(close)]

    def _of_dialect(self) -> Any:
        """Parse ``#dialect.name<...>``, or resolve an alias."""
        scan = self._scan
        name = scan.word(_DIALECT, "an attribute")[1:]
        if not scan.peek("<"):
            return self.aliases.get(f"#{name}", Opaque(name, ""))
        if name in _FIELDS:
            scan.expect("<")
            return self.dictionary(">")
        body = scan.balanced()
        words = body.split()
        if len(words) == 2 and (name == "stablehlo" or words[0] == "partial"):
            # <comparison_direction EQ>, and a reduction of the dialect shard
            return words[1]
        return Opaque(name, body)

    def _drop_type(self, typed: bool) -> None:
        if typed and self._scan.take(":"):
            self.type()


def read_name(location: str, aliases: Mapping[str, str]) -> str:
    """Return the name in a location, or an empty text.

    Parameters
    ----------
    location : str
        The text between ``loc(`` and ``)``.
    aliases : mapping of str to str
        The texts that ``#loc1`` and the like represent.

    Examples
    --------
    >>> read_name("#loc1", {"#loc1": '"p[0]"'}), read_name('"file.py":3:1', {})
    ('p[0]', '')
    """
    for _ in range(_MAX_ALIASES):
        if location not in aliases:
            break
        location = aliases[location]
    match = _LOCATION.match(location.strip())
    return unescaped(match.group(1)) if match else ""


def unescaped(text: str) -> str:
    """Return an MLIR string with its escapes resolved."""
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _plain(m[2]), text)


def _plain(letter: str) -> str:
    return {"n": "\n", "t": "\t"}.get(letter, letter)

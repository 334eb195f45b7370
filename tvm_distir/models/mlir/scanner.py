# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Scan a text by consuming tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tvm_distir.support import ModelError

_GAP = re.compile(r"(?:\s+|//[^\n]*)*")
_NEXT = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>()\[\]{}]')
_CLOSING = {"<": ">", "(": ")", "[": "]", "{": "}"}
MAX_DEPTH = 64
"""The maximum depth of nested brackets and regions."""
MOST_DIGITS = 20


class Scanner:
    """Scanner that consumes tokens of a text in order.

    Parameters
    ----------
    text : str
    location : str
        The name of the text in errors.
    """

    def __init__(self, text: str, location: str) -> None:
        self.text = text
        self._location = location
        self._at = 0
        self._line_of = (0, 1)
        self._depth = 0

    def skip(self) -> int:
        """Skip blanks and comments; return the position of the next token."""
        match = _GAP.match(self.text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Consume a match of a pattern at this position."""
        match = pattern.match(self.text, self.skip())
        if match:
            self._at = match.end()
        return match

    def peek(self, literal: str) -> bool:
        """Return whether a literal is next."""
        return self.text.startswith(literal, self.skip())

    def take(self, literal: str) -> bool:
        """Consume a literal if it is next."""
        if self.peek(literal):
            self._at += len(literal)
            return True
        return False

    def expect(self, literal: str) -> None:
        """Consume a literal, or reject any other text (DIST0370)."""
        if not self.take(literal):
            raise self.fault(f'"{literal}" is expected, not {self.here()}')

    def items(self, close: str) -> Iterator[None]:
        """Yield before each item of a list with commas, up to its closing literal."""
        while not self.take(close):
            yield
            if not self.peek(close):
                self.expect(",")

    def word(self, pattern: re.Pattern[str], title: str) -> str:
        """Consume a match of a pattern, or reject any other text (DIST0370)."""
        match = self.match(pattern)
        if match is None:
            raise self.fault(f"{title} is expected, not {self.here()}")
        return match.group()

    def balanced(self) -> str:
        """Consume a bracket up to the matching bracket; return the text between them."""
        start = self.skip()
        depth: list[str] = []
        for match in _NEXT.finditer(self.text, start):
            piece = match.group()
            if piece in _CLOSING:
                depth.append(_CLOSING[piece])
            elif depth and piece == depth[-1]:
                depth.pop()
                if not depth:
                    self._at = match.end()
                    return self.text[start + 1 : match.start()]
            elif piece in ">)]}":
                break
        raise self.fault("a bracket is not closed")

    @property
    def at_end(self) -> bool:
        """Return whether the text has ended."""
        return self.skip() >= len(self.text)

    @property
    def line(self) -> int:
        """Return the line number of the next token."""
        at, (known, line) = self.skip(), self._line_of
        self._line_of = (at, line + self.text.count("\n", known, at))
        return self._line_of[1]

    def here(self) -> str:
        """Return the next token, for messages."""
        piece = self.text[self.skip() :].split(maxsplit=1)[:1]
        return f'"{piece[0][:40]}"' if piece else "the end of the text"

    def deeper(self) -> None:
        """Enter a bracket or a region, up to a maximum depth (DIST0370)."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.fault(f"brackets are nested more than {MAX_DEPTH} deep")

    def higher(self) -> None:
        """Leave the level that :meth:`deeper` entered."""
        self._depth -= 1

    def integer(self, digits: str) -> int:
        """Parse an integer, up to a maximum number of digits (DIST0370)."""
        if len(digits) > MOST_DIGITS:
            raise self.fault(f"a number of {len(digits)} digits")
        return int(digits)

    def fault(self, problem: str) -> ModelError:
        """Return an error at this position (DIST0370)."""
        remedy = "Write the text again with JAX's as_text(), or jax.export."
        return ModelError(
            "DIST0370", problem, location=f"{self._location}:{self.line}", remedy=remedy
        )

    def unknown(self, operation: str, remedy: str = "Lower the model to StableHLO.") -> ModelError:
        """Return the error about an operation that is not StableHLO's (DIST0371)."""
        return ModelError(
            "DIST0371",
            f"{operation} cannot be imported",
            location=f"{self._location}:{self.line} ({operation})",
            remedy=remedy,
        )

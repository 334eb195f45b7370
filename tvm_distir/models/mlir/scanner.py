# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A place in a text that moves on as pieces are taken."""

from __future__ import annotations

import re

from tvm_distir.support import ModelError

_GAP = re.compile(r"(?:\s+|//[^\n]*)*")
_NEXT = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>()\[\]{}]')
_CLOSING = {"<": ">", "(": ")", "[": "]", "{": "}"}
MAX_DEPTH = 64
"""How deeply brackets and regions may be nested."""
MOST_DIGITS = 20


class Scanner:
    """Takes pieces of a text, one behind the other.

    Parameters
    ----------
    text : str
    place : str
        What errors call the text.
    """

    def __init__(self, text: str, place: str) -> None:
        self.text = text
        self._place = place
        self._at = 0
        self._line_of = (0, 1)
        self._depth = 0

    def skip(self) -> int:
        """Go over blanks and comments; where the next piece begins."""
        match = _GAP.match(self.text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Take what a pattern matches here."""
        match = pattern.match(self.text, self.skip())
        if match:
            self._at = match.end()
        return match

    def peek(self, literal: str) -> bool:
        """Whether a literal stands here."""
        return self.text.startswith(literal, self.skip())

    def take(self, literal: str) -> bool:
        """Take a literal if it stands here."""
        if self.peek(literal):
            self._at += len(literal)
            return True
        return False

    def expect(self, literal: str) -> None:
        """Take a literal; refuse (DIST0370) any other text."""
        if not self.take(literal):
            raise self.fault(f'"{literal}" is expected, not {self.here()}')

    def word(self, pattern: re.Pattern[str], what: str) -> str:
        """Take what a pattern matches; refuse (DIST0370) any other text."""
        match = self.match(pattern)
        if match is None:
            raise self.fault(f"{what} is expected, not {self.here()}")
        return match.group()

    def balanced(self) -> str:
        """Take a bracket and all up to the one that closes it; what stands between them."""
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
        """Whether nothing follows."""
        return self.skip() >= len(self.text)

    @property
    def line(self) -> int:
        """Number of the line of the next piece."""
        at, (known, line) = self.skip(), self._line_of
        self._line_of = (at, line + self.text.count("\n", known, at))
        return self._line_of[1]

    def here(self) -> str:
        """The next piece, for messages."""
        piece = self.text[self.skip() :].split(maxsplit=1)[:1]
        return f'"{piece[0][:40]}"' if piece else "the end of the text"

    def deeper(self) -> None:
        """Enter brackets or a region; refuse (DIST0370) too many."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.fault(f"brackets are nested over {MAX_DEPTH} deep")

    def higher(self) -> None:
        """Leave what :meth:`deeper` entered."""
        self._depth -= 1

    def integer(self, digits: str) -> int:
        """A number; refuse (DIST0370) one of more digits than any attribute has."""
        if len(digits) > MOST_DIGITS:
            raise self.fault(f"a number of {len(digits)} digits")
        return int(digits)

    def fault(self, what: str) -> ModelError:
        """An error at this place (DIST0370)."""
        return ModelError(
            "DIST0370",
            what,
            place=f"{self._place}:{self.line}",
            remedy="Write the text again with JAX's as_text(), or jax.export.",
        )

    def unknown(self, operation: str) -> ModelError:
        """An error for an operation of no known dialect here (DIST0371)."""
        return ModelError(
            "DIST0371",
            f"no import of {operation}",
            place=f"{self._place}:{self.line} ({operation})",
            remedy="Lower the model to StableHLO.",
        )

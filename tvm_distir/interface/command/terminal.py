# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the two streams of the command: results on stdout, messages on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from tvm_distir.support import UsageError, printable

from .progress import clear_line

if TYPE_CHECKING:
    from tvm_distir.interface.report.model import Analysis

_CHUNK = 4096
"""Characters per write."""


def open_closed_streams() -> None:
    """Connect closed standard streams to the null device.

    Otherwise the next file that is opened gets the number of, say, stderr, and what C++ code
    prints there goes into it. ``sys.stdout`` stays None, so that :func:`print_result` can tell.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def wants_colour() -> bool:
    """Return whether stdout is a terminal with colours (see ``NO_COLOR`` and ``TERM``)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return _is_terminal()


_KEPT = "\n\t"
_COLOURS = re.compile("(\x1b\\[[0-9]{1,2}m)")


def _harmless(text: str) -> str:
    """Remove control sequences from results, except line breaks and colours."""
    parts = _COLOURS.split(text) if wants_colour() else [text]
    return "".join(part if i % 2 else printable(part, _KEPT) for i, part in enumerate(parts))


def print_result(text: str) -> None:
    """Print results to stdout completely, without control sequences on a terminal.

    Raises
    ------
    UsageError
        DIST0153 where stdout is closed, or cannot take them.
    BrokenPipeError
        Where its reader has gone.
    """
    if sys.stdout is None:
        raise _unwritable("the stream is closed")
    encoding = sys.stdout.encoding or "utf-8"
    if _is_terminal():
        text = _harmless(text)
    clear_line()
    known = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        # Of one large text, an unbuffered stdout (PYTHONUNBUFFERED) drops what a pipe whose
        # reader goes has not taken, without a word.
        for start in range(0, len(known), _CHUNK):
            sys.stdout.write(known[start : start + _CHUNK])
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget(sys.stdout)
        raise _unwritable(error.strerror or str(error)) from error


def print_answer(data: Mapping[str, object], text: str, as_json: bool) -> None:
    """Print results as text, or as JSON with the warnings that were shown."""
    print_result(json.dumps(with_warnings(data), indent=1) + "\n" if as_json else text)


def print_analysis(analysis: Analysis, as_json: bool) -> None:
    """Print an analysis; its verdict again at the end if the terminal is shorter than the text.

    Raises
    ------
    InfeasibleError
        DIST0804 where the step does not fit into the memory of the devices.
    """
    from tvm_distir.interface.report.document import to_dict, to_json
    from tvm_distir.interface.report.text import to_text
    from tvm_distir.interface.report.verdict import check_fits, to_verdict

    colour = wants_colour()
    text = to_json(to_dict(analysis)) if as_json else to_text(analysis, colour)
    rows = shutil.get_terminal_size((80, 24)).lines
    repeats_verdict = not as_json and _is_terminal() and text.count("\n") >= rows
    print_result(f"{text}\n{to_verdict(analysis, colour)}" if repeats_verdict else text)
    check_fits(analysis)


def _unwritable(why: str) -> UsageError:
    problem = f"the results cannot be written: {why}"
    remedy = "Redirect it to a file with enough space, or to /dev/null."
    return UsageError("DIST0153", problem, location="standard output", remedy=remedy)


_shown: list[str] = []
"""The warnings of Python that the running command has shown."""


def warn(message: str) -> None:
    """Print a warning to stderr, and keep it for :func:`with_warnings`."""
    text = " ".join(message.split())
    _shown.append(text)
    print_message(f"warning: {text}")


def forget_warnings() -> None:
    """Begin a command, which has shown no warnings."""
    _shown.clear()


def with_warnings(data: Mapping[str, object]) -> dict[str, object]:
    """Return results as JSON has them, with the warnings that were shown, if there are any."""
    return {**data, **({"warnings": list(_shown)} if _shown else {})}


def print_message(message: str) -> None:
    """Print a message to stderr; a message that cannot be written is dropped.

    Names in it may hold control characters: these are shown, not sent.

    Raises
    ------
    BrokenPipeError
        Where its reader has gone.
    """
    clear_line()
    try:
        print(printable(message, _KEPT), file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        forget(sys.stderr)


def forget(stream: TextIO | None) -> None:
    """Redirect the buffer of a stream to the null device, to avoid an error at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no file behind it
        number = stream.fileno() if stream is not None else -1
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)

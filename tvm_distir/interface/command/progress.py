# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Show the progress of a command on stderr, without TVM's warnings.

TVM prints a warning per kernel that it compiles (38 lines for a GPT-2). They come from C++, so
they are caught where they arrive: for the time of a command descriptor 2 is a file, and our own
messages go to the old one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

_WARNING = re.compile(rb"\[\d\d:\d\d:\d\d\] \S+: Warning: ")
"""The prefix of a warning in the log of TVM."""
_TICK_S = 0.25
SHOWN_AFTER_S = 1.0
"""Seconds after which the stage of a command is shown."""


@contextlib.contextmanager
def at_work(quiet: bool = True) -> Iterator[None]:
    """Show the stage of a long command on a terminal, and suppress the warnings of TVM.

    Parameters
    ----------
    quiet : bool
        Whether to keep the warnings away. What else C++ prints follows at the end.
    """
    global _line
    with _without_warnings() if quiet else contextlib.nullcontext(2) as descriptor:
        _line = StageLine(descriptor if _is_terminal(descriptor) else None)
        try:
            yield
        finally:
            _line.close()
            _line = None


class Interrupts:
    """Records that Ctrl-C was pressed, since the C++ of TVM replaces the exception."""

    def __init__(self) -> None:
        self.seen = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Handle Ctrl-C in a block: the first raises KeyboardInterrupt, later ones are ignored."""
        ours = threading.current_thread() is threading.main_thread()
        if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            if not self.seen:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, *_: object) -> None:
        first, self.seen = not self.seen, True
        if first:
            raise KeyboardInterrupt


def enter_stage(name: str) -> None:
    """Set the current stage of the command."""
    if _line is not None:
        _line.enter(name)


def clear_line() -> None:
    """Remove the line of the stage before other output."""
    if _line is not None:
        _line.clear()


def _is_terminal(descriptor: int | None) -> bool:
    dumb = os.environ.get("TERM", "") in ("", "dumb")
    return descriptor is not None and not dumb and os.isatty(descriptor)


@contextlib.contextmanager
def _without_warnings() -> Iterator[int | None]:
    """Redirect descriptor 2 to a file; yield the former stderr, or None if it is closed."""
    try:
        real = os.dup(2)
    except OSError:
        yield None
        return
    old, stream = sys.stderr, None
    try:
        file = tempfile.TemporaryFile(mode="ab+", buffering=0)
    except OSError:  # the disk is full: warnings are no reason to do nothing
        try:
            yield real
        finally:
            os.close(real)
        return
    with file as caught:
        try:
            if _writes_to(old, 2):
                old.flush()
                stream = open(real, "w", encoding=old.encoding, errors=old.errors, closefd=False)
                sys.stderr = stream
            os.dup2(caught.fileno(), 2)
            yield real
        finally:
            os.dup2(real, 2)
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
                sys.stderr = old
            os.close(real)
            _pass_on(caught.fileno())


def _writes_to(stream: object, descriptor: int) -> bool:
    try:
        return bool(stream.fileno() == descriptor)  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False


def _pass_on(caught: int) -> None:
    """Print the captured output except warnings."""
    os.lseek(caught, 0, os.SEEK_SET)
    with open(caught, "rb", closefd=False) as lines:
        for line in lines:
            if not _WARNING.match(line):
                with contextlib.suppress(OSError):
                    os.write(2, line)


class StageLine:
    """The current stage of a command, shown in a line of the terminal that is overwritten.

    Parameters
    ----------
    descriptor : int or None
        Of the terminal; None shows nothing.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._began_s = time.monotonic()
        self._stage: str | None = None
        self._shown = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done = threading.Event()

    def enter(self, stage: str) -> None:
        """Set the stage that begins."""
        if self._descriptor is None:
            return
        with self._lock:
            self._stage = stage
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def clear(self) -> None:
        """Remove the line before a message or results; the next stage shows it again."""
        with self._lock:
            self._stage = None
            self._wipe()

    def close(self) -> None:
        """Remove the line permanently."""
        self._done.set()
        self.clear()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(_TICK_S):
            took_s = time.monotonic() - self._began_s
            with self._lock:
                if took_s >= SHOWN_AFTER_S and self._stage is not None and not self._done.is_set():
                    self._write(f"\r\x1b[K{self._stage} ... {took_s:.0f} s")
                    self._shown = True

    def _wipe(self) -> None:
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, text.encode())


_line: StageLine | None = None
"""The progress of the running command."""

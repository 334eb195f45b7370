# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What is shown while a command works, when it is interrupted, and last of all."""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import time
from typing import Any, NoReturn

import pytest

from tvm_distir.interface.command import analyze, main, progress, terminal
from tvm_distir.interface.command.progress import StageLine, at_work

WIPED = "\r\x1b[K"
WORK = "analyze zoo:gpt?size=tiny --strategy data_parallel --mesh dp=2 --system dgx-a100"


def test_warnings_of_tvm_are_kept_away(capfd: pytest.CaptureFixture[str]) -> None:
    with at_work():
        os.write(2, b"[12:00:00] /project/include/tvm/topi/transform.h:1261: Warning: Fast\n")
        os.write(2, b"terminate called\n")
        print("ours", file=sys.stderr)
    assert capfd.readouterr().err.splitlines() == ["ours", "terminate called"]
    with at_work(quiet=False):
        os.write(2, b"[12:00:00] /project/a.h:1: Warning: all is shown with --debug\n")
    assert "Warning" in capfd.readouterr().err


def _all_on(terminal_side: int) -> str:
    """What was written, all of it: the kernel brings it over in pieces, some time after `write`."""
    shown = b""
    while select.select([terminal_side], [], [], 1.0)[0]:
        shown += os.read(terminal_side, 4096)
    return shown.decode()


def test_stages_are_shown_on_a_terminal_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.0)
    line = StageLine(theirs)
    line.enter("propagate")
    time.sleep(0.6)
    line.close()
    shown = _all_on(ours)
    os.close(theirs)
    os.close(ours)
    assert f"{WIPED}propagate ... " in shown and shown.endswith(WIPED)
    silent = StageLine(None)
    silent.enter("plan")
    silent.close()


@pytest.mark.parametrize(("rows", "times"), [(30, 2), (200, 1)])
def test_the_verdict_is_seen_last(
    rows: int, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "_is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("LINES", str(rows))
    monkeypatch.setenv("COLUMNS", "100")
    assert main(shlex.split(WORK)) == 0
    lines = capsys.readouterr().out.splitlines()
    verdict = [line for line in lines if " per step, bound by " in line]
    assert len(verdict) == times and (times == 1 or verdict[0] in lines[-4:])


def _interrupted_in_native_code(*_: Any) -> NoReturn:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        raise RuntimeError("no message") from None  # as it comes out of TVM
    raise AssertionError("no signal came")


def test_an_interrupt_that_tvm_turns_into_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(analyze, "_run", _interrupted_in_native_code)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has none
    try:
        assert main(shlex.split(WORK)) == 130
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert capsys.readouterr().err == "interrupted\n"

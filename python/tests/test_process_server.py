# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Processes that begin quickly are those of the usual interpreter, to their callers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.child_processes import child_environment, quick_python

SAYS = """
import os, sys, __main__
print(sys.argv, sys.path[0], os.getcwd(), os.environ["WORD"], __main__.__name__, sys.stdin.read())
print(sys.path, file=sys.stderr)
os.write({pipe}, b"a file") and sys.exit(7)
"""
FRESH = "import sys; print('tvm' in sys.modules)"


def ran(python: str, arguments: list[str], **variables: str) -> tuple[int, str, str]:
    """Run an interpreter to its end."""
    environment = child_environment(**variables)
    done = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
def test_a_process_inherits_what_a_usual_one_does(kind: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    program = SAYS.format(pipe=write)
    (tmp_path / "says.py").write_text(program, encoding="utf-8")
    first = {"-c": ["-c", program], "-m": ["-m", "says"], "script": ["says.py"]}[kind]
    ends = []
    for python in (sys.executable, quick_python()):
        done = subprocess.run(
            [python, *first, "one", "-m"], env=child_environment(WORD="a word"), cwd=tmp_path,
            input="typed", pass_fds=[write], capture_output=True, text=True, check=False,
        )  # fmt: skip
        ends.append((done.returncode, done.stdout, done.stderr, os.read(read, 99)))
    os.close(read)
    os.close(write)
    assert ends[0] == ends[1]
    assert ends[0][0] == 7 and "a word" in ends[0][1] and ends[0][3] == b"a file"


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 15)", "os._exit(9)", "raise ValueError"])
def test_a_process_ends_as_a_usual_one_does(end: str) -> None:
    codes = [
        ran(python, ["-c", f"import os; {end}"])[0] for python in (sys.executable, quick_python())
    ]
    assert codes[0] == codes[1] != 0


def test_what_differs_at_its_start_is_run_by_the_usual_interpreter() -> None:
    python = quick_python()
    assert ran(python, ["-c", FRESH])[1] == "True\n"
    assert ran(python, ["-c", FRESH], PYTHONHASHSEED="3")[1] == "False\n"
    assert ran(python, ["-W", "error", "-c", FRESH])[1] == "False\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_process(number: signal.Signals) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [quick_python(), "-c", program], env=child_environment(),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert child != process.pid
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    deadline_s = time.monotonic() + 30
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Reproducers and tests run in processes of their own, and what they found."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
FAULTS, TESTS = HERE / "faults", HERE / "tests"
HELPERS = {"reporting", "chains", "together"}
ALONE = {"test_05_work_list.py"}  # tests that end their process when they fail
STATE = "state: "
LIMIT_S = 300
STACK_BYTES = 8 << 20  # what most systems give; deep recursion ends at the same depth everywhere


@dataclass(frozen=True)
class Found:
    """What a reproducer found.

    Attributes
    ----------
    state : str
        ``ok``, ``wrong``, ``error: ...``, ``crash: SIGSEGV`` and the like.
    said : str
        All lines that it printed before.
    """

    state: str
    said: str


def fault_names() -> list[str]:
    """Return the names of all reproducers."""
    return sorted(path.stem for path in FAULTS.glob("*.py") if path.stem not in HELPERS)


def _small_stack() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, most))


def _process(command: Sequence[str], ours: bool = False) -> subprocess.CompletedProcess[str]:
    """Run Python on TVM as its wheel is: without plugins, but for those that are asked for."""
    environment = {**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), os.environ.get("PYTHONPATH", "")] if ours else [str(TESTS)]
    )
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        preexec_fn=_small_stack,
    )


def _ended(done: subprocess.CompletedProcess[str], printed: str) -> Found:
    """Read what a reproducer printed; one that says no state was ended."""
    message, mark, state = printed.rpartition(STATE)
    if mark and done.returncode == 0:
        return Found(state.strip(), message)
    if done.returncode < 0:
        return Found(f"crash: {signal.Signals(-done.returncode).name}", printed)
    raise RuntimeError(f"a reproducer failed:\n{printed}{done.stderr}")


def judge(name: str) -> Found:
    """Run one reproducer in a process of its own."""
    done = _process([str(FAULTS / f"{name}.py")])
    return _ended(done, done.stdout)


def judge_together(names: Sequence[str]) -> dict[str, Found]:
    """Run several reproducers in one process, none of which may crash."""
    done = _process([str(FAULTS / "together.py"), *names])
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    parts = re.split(r"^== (\w+)\n", done.stdout, flags=re.MULTILINE)[1:]
    return {
        name: _ended(done, printed) for name, printed in zip(parts[::2], parts[1::2], strict=True)
    }


def run_tests(ours: bool, files: str = "test_*.py") -> dict[str, str]:
    """Run the tests in one process, those that may end it in processes of their own.

    Parameters
    ----------
    ours : bool
        With the passes of tvm_distir.
    files : str
        Pattern of the files' names.

    Returns
    -------
    dict of str to str
        ``passed`` or ``failed`` by ``file::test``, or ``crash: ...`` by file.
    """
    paths = sorted(TESTS.glob(files))
    alone = [[path] for path in paths if path.name in ALONE]
    together = [path for path in paths if path.name not in ALONE]
    matches: dict[str, str] = {}
    for group in [*alone, together] if together else alone:
        matches |= _run_group(group, ours)
    return matches


def _run_group(paths: Sequence[Path], ours: bool) -> dict[str, str]:
    """Run files of tests in one process."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={TESTS}"]
        plugin = ["-p", "with_ours"] if ours else []
        command = ["-m", "pytest", *options, *plugin, f"--junitxml={report}", *map(str, paths)]
        done = _process(command, ours)
        if done.returncode < 0 and len(paths) == 1:
            return {paths[0].name: f"crash: {signal.Signals(-done.returncode).name}"}
        if not 0 <= done.returncode <= 1:
            raise RuntimeError(f"exit code {done.returncode}: {done.stdout}{done.stderr}")
        matches = {}
        for case in ElementTree.parse(report).iter("testcase"):
            failed = case.find("failure") is not None or case.find("error") is not None
            file = str(case.get("classname")).rpartition(".")[2]
            matches[f"{file}.py::{case.get('name')}"] = "failed" if failed else "passed"
        return matches

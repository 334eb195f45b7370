#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hostile inputs: what users, disks and signals do to the command, and what it must not do.

Each case runs the command, or a program that calls the package, in a child of this process, which
has imported everything, in a folder of its own::

    .venv/bin/python scripts/checks/hostile.py                 # all cases
    .venv/bin/python scripts/checks/hostile.py --only plan     # those of one kind
    .venv/bin/python scripts/checks/hostile.py --only plan-017 --show

A case fails that exits with 70 or dies, prints a traceback, says nothing where it fails, takes over
a minute, changes or removes a file that was there, or leaves one that it was not asked for; and one
that is not refused, or not equal, where that is expected.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import io
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from hostile_cases import Case, all_cases, write_files
from hostile_programs import CACHE

os.environ["XDG_CACHE_HOME"] = CACHE  # before the package is imported
LIMIT_S = 60.0
SYSTEM = ("--system", "system.json")
ALLOWED = (0, 1, 2, 3, 130, 141)


def contents(folder: Path) -> dict[str, str]:
    """What stands in a folder: hashes of files, kinds of all else, by path."""
    matches = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            matches[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            matches[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            matches[name] = "folder" if path.is_dir() else "special"
    return matches


def child(case: Case, folder: Path, out: int, err: int) -> None:
    """Run the command in this process, which ends."""
    code = 71
    try:
        os.chdir(folder)
        os.dup2(out, 1)
        os.dup2(err, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        if case.stdout:
            os.dup2(os.open(case.stdout, os.O_WRONLY), 1)
        if case.most_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (case.most_bytes, case.most_bytes))
        code = call(case)
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except SystemExit as result:
        code = int(result.code or 0)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def call(case: Case) -> int:
    """Run the command, or the program of a case; return the exit code."""
    from tvm_distir.interface.command import main
    from tvm_distir.support.errors.tree import DistIRError

    if case.program is None:
        return main(list(case.words))
    try:
        if case.program():
            return 0
    except DistIRError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print("the result is not that of the reference", file=sys.stderr)
    return 71


def run(case: Case, folder: Path) -> tuple[int, float, str]:
    """Run a case; return the exit code (negative: a signal's), seconds and what it said."""
    out, err = (os.pipe() for _ in range(2))
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        child(case, folder, out[1], err[1])
    for end in (out[1], err[1]):
        os.close(end)
    if case.closes:
        os.close(out[0])
    code, message = watched(case, pid, started, [err[0]] if case.closes else [err[0], out[0]])
    for end in [err[0]] if case.closes else [err[0], out[0]]:
        os.close(end)
    return code, time.monotonic() - started, message


def watched(case: Case, pid: int, started: float, ends: list[int]) -> tuple[int, str]:
    """Read what a child says, signal it when it is time, and wait for its end."""
    message, sent = b"", case.signal is None
    waiting = list(ends)
    while True:
        ready, _, _ = select.select(waiting, [], [], 0.005)
        for end in ready:
            part = os.read(end, 1 << 16)
            if not part:
                waiting.remove(end)
            elif end == ends[0]:
                message += part
        passed = time.monotonic() - started
        if not sent and passed >= case.after_s:
            sent = True
            _signal(pid, case.signal)
        if passed > LIMIT_S:
            _signal(pid, signal.SIGKILL)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            for end in waiting:
                while select.select([end], [], [], 0)[0] and (part := os.read(end, 1 << 16)):
                    message += part if end == ends[0] else b""
            return os.waitstatus_to_exitcode(status), message.decode("utf-8", "replace")


def _signal(pid: int, number: int | None) -> None:
    try:
        os.kill(pid, number or signal.SIGTERM)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise


def faults(
    case: Case, code: int, took_s: float, messages: str, before: dict, after: dict
) -> list[str]:
    """What a case did that it must not."""
    matches = []
    allowed = {*ALLOWED, *case.codes}
    if took_s > LIMIT_S:
        matches.append("it hangs")
    elif code not in allowed:
        matches.append(f"exit code {code}")
    elif case.expected == "refused" and code == 0:
        matches.append("it is not refused")
    elif case.expected == "equal" and code != 0:
        matches.append("it is refused")
    if "Traceback (most recent call last)" in messages:
        matches.append("a traceback")
    if code in (1, 2, 3) and "DIST" not in messages and not case.stdout:
        matches.append("it says nothing")
    changed = [n for n in before if after.get(n) != before[n] and n not in case.outputs]
    left = [n for n in after if n not in before and n.split("/")[0] not in case.outputs]
    if case.program is not None:  # what it writes in its folders is no result
        changed = [n for n in changed if n.split("/")[0] not in case.outputs]
    matches += [f"{n} is {'changed' if n in after else 'lost'}" for n in changed]
    matches += [f"{name} is left" for name in left[:2]]
    there = [n for n in case.outputs if n in after and n not in before]
    if case.program is None and code not in (0, 3) and len(there) < len(case.outputs):
        created = [n for n in after if n not in before and n.split("/")[0] in case.outputs]
        matches += [
            f"{name} is left after a failure" for name in created[:2]
        ]  # written all, or none
    return matches


def main() -> int:
    """Run the cases; return 1 where one fails."""
    parser = argparse.ArgumentParser(description="Run the command on hostile inputs.")
    parser.add_argument("--only", default="", help="cases whose name starts so")
    parser.add_argument("--every", type=int, default=1, help="only each N-th case")
    parser.add_argument("--show", action="store_true", help="print what each case says")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        return _run_all(arguments, base)
    finally:
        shutil.rmtree(base)


def _warm(folder: Path) -> None:
    """Run whole commands in this process."""
    from tvm_distir.interface.command import main as command

    here = Path.cwd()
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        command(["analyze", "m.onnx", *"--strategy data_parallel --mesh dp=2".split(), *SYSTEM])
        command(["analyze", "m.py", "--plan", "plan.json", *SYSTEM])
        command(["simulate", "program.json", *SYSTEM])
    os.chdir(here)


def _run_all(arguments: argparse.Namespace, base: Path) -> int:
    fresh = base / "fresh"
    fresh.mkdir()
    write_files(fresh)
    _warm(fresh)  # children find everything imported
    whole = "analyze m.py --plan plan.json --system system.json --report r.html --trace t.json"
    code, warm_s, message = run(Case("whole", tuple(whole.split()), outputs=("r.html",)), fresh)
    if code:
        raise RuntimeError(f"the whole inputs fail with {code}: {message}")
    for name in ("r.html", "t.json"):
        (fresh / name).unlink()
    cases = [c for c in all_cases(fresh, warm_s) if c.name.startswith(arguments.only)]
    codes: Counter[int] = Counter()
    count = signalled = bad = 0
    for case in cases[:: arguments.every]:
        folder = base / "case"
        shutil.copytree(fresh, folder, symlinks=True)
        case.prepare(folder)
        before = contents(folder)
        code, took_s, message = run(case, folder)
        result = faults(case, code, took_s, message, before, contents(folder))
        count += 1
        if case.signal is None:
            codes[code] += 1
        else:  # its exit code depends on when the signal arrives
            signalled += 1
        bad += bool(result)
        if result or arguments.show:
            words = " ".join(case.words)
            print(f"{case.name}: {'; '.join(result) or 'good'}\n  {words[:150]}", flush=True)
            print("\n".join(f"  | {line[:200]}" for line in message.splitlines()[-8:]), flush=True)
        shutil.rmtree(folder)
    counts = ", ".join(f"{n} with {code}" for code, n in sorted(codes.items()))
    print(f"{count} cases, {bad} bad; exit codes: {counts}; {signalled} interrupted by a signal")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

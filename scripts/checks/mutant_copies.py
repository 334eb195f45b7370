# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Copies of the package with other sources, and runs of pytest on them, for ``mutants.py``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from mutant_areas import AREAS, PACKAGE, ROOT, Area
from mutant_tests import NOTES, REACHED, Tests, noting


class Copy:
    """A copy of the package in a folder of its own, and pytest on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / PACKAGE, folder / PACKAGE)

    def write(self, path: str, source: bytes) -> None:
        """Replace a file of the package, and remove what it was compiled to."""
        file = self.folder / PACKAGE / path
        file.write_bytes(source)
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()

    def pytest(
        self, files: Iterable[Path], limit_s: float | None, *options: str, **variables: Path
    ) -> tuple[int | None, str]:
        """Return the exit status of pytest, None where it runs over its time, and its output."""
        first = [self.folder, ROOT / "python", Path(__file__).parent]
        before = filter(None, [os.environ.get("PYTHONPATH")])
        environment = {
            **os.environ,
            **{name: str(path) for name, path in variables.items()},
            "PYTHONPATH": os.pathsep.join([*map(str, first), *before]),
        }
        fixed = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "mutant_tests"]
        settings = [f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
        command = [sys.executable, "-m", "pytest", *fixed, *settings, *options, *map(str, files)]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit_s)
                return process.returncode, output
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None, process.communicate()[0]


def _digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def reached_by(name: str, cache: Path) -> Tests:
    """Return the tests of an area with what they reach, from a file where it is still true."""
    area = AREAS[name]
    known = json.loads(cache.read_text(encoding="utf-8")) if cache.exists() else {}
    sources = _digest(ROOT / PACKAGE / path for path in area.paths())
    entry = known.get(name, {})
    if entry.get("sources") != sources:
        entry = {"sources": sources, "files": {}, "tests": {}}
    now = {str(path.relative_to(ROOT)): _digest([path]) for path in area.test_files()}
    changed = [path for path in now if entry["files"].get(path) != now[path]]
    tests: Tests = {
        test: note
        for test, note in entry["tests"].items()
        if test.partition("::")[0] in {*now, ""} - {*changed}
    }
    if changed:
        print(f"{name}: finding out what {len(changed)} files of tests reach", flush=True)
        tests |= _find_reached(area, [ROOT / path for path in changed])
    known[name] = {"sources": sources, "files": now, "tests": tests}
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(known), encoding="utf-8")
    return tests


def _find_reached(area: Area, files: list[Path]) -> Tests:
    with tempfile.TemporaryDirectory() as folder:
        copy, result = Copy(Path(folder)), Path(folder) / "reached.json"
        copy.write("reached.py", NOTES.encode())
        for path in area.paths():
            source = (ROOT / PACKAGE / path).read_text(encoding="utf-8")
            copy.write(path, noting(path, source).encode())
        status, output = copy.pytest(files, None, **{REACHED: result})
        if not result.exists():
            raise RuntimeError(f"pytest ended with {status}:\n{output[-4000:]}")
        tests: Tests = json.loads(result.read_text(encoding="utf-8"))
    return tests

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Runs a page of the documentation as a reader would: every code block in order, as written.

==============================  =================================================================
block                           what is done
==============================  =================================================================
after a line that ends with     the file is written; of ``pyproject.toml`` the entry points are
a file in backticks and ":"     known from then on, as after an installation
``python``                      executed; all blocks of a page share their names
``console`` of ``>>>`` lines    executed like them, and what is printed is compared
``console`` of ``$`` lines      run by the shell, or in this process where it is a plain command of
                                the package, maybe with a pipe or in a loop over words, and not
                                the first one behind an installation; where the page shows
                                what is printed, compared; ``pip install -e .`` is not run: see the
                                first row
==============================  =================================================================

What is shown may leave out lines as ``...``. A command must succeed unless the next one is
``echo $?``, whose output says how it ended. Blocks of other languages are refused: a page that
is run shows nothing that is not.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tvm_distir
from tvm_distir.planning import StageMemo
from tvm_distir.planning.serving import serving_engine
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.surface import Surface
from tvm_distir.support.plugins import registry

INSTALL = "pip install -e ."
"""What a page says to make its ``pyproject.toml`` known, which is known already: tests install
nothing."""

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./-]+\.\w+)`:$")
_TABLE = re.compile(r'^\[project\.entry-points\."?([\w.]+)"?\]$')
_ENTRY = re.compile(r'^"?([\w.-]+)"? *= *"([\w.:]+)"')
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_LOOP = re.compile(r"^for (\w+) in ([\w ]+); do (.*?);? *done$", re.DOTALL)
_SECONDS = 300
_QUIET = " 2> /dev/null"
_STAGES = StageMemo(most=400)
"""Stages of commands that run here: most of them take the same step of the same model."""
_SURFACES: dict[str, Surface] = {}
_PLAIN = (
    "analyze", "check", "compare", "explain", "opt", "search", "serve-analyze", "serve-search",
    "sweep", "systems", "verify",
)  # fmt: skip
"""Commands that leave nothing behind in a process, as does the answer to a model alone."""


@dataclass(frozen=True)
class Block:
    """A code block: its language, text, first line on the page, and the file that it is, if any."""

    language: str
    text: str
    line: int
    file: str | None


def _surface(served: ServedModel) -> Surface:
    """Return the steps of a model, which commands that run here fit once."""
    return _SURFACES.setdefault(repr(served), Surface(served))


def blocks(page: str) -> Iterator[Block]:
    """The code blocks of a page, in order."""
    for match in _FENCE.finditer(page):
        before = page[: match.start()].rstrip("\n")
        named = _FILE.search(before.rpartition("\n")[2])
        line = page.count("\n", 0, match.start(2)) + 1
        yield Block(match[1], match[2], line, named and named[1])


class Reader:
    """Someone who follows a page in an empty folder.

    Parameters
    ----------
    folder : Path
        The folder, which becomes the current one.
    monkeypatch : pytest.MonkeyPatch
        Takes back what running changes in this process.
    environment : mapping of str to str, optional
        Variables for the commands.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.checker = doctest.OutputChecker()
        programs = folder / ".bin"
        programs.mkdir()
        for name, arguments in {
            "tvm-distir": " -m tvm_distir_command",
            "python": "",
        }.items():
            command = programs / name
            program = f"#!/bin/sh\nexec '{sys.executable}'{arguments} \"$@\"\n"
            command.write_text(program, encoding="utf-8")
            command.chmod(0o755)
        package = Path(tvm_distir.__file__).resolve().parents[1]
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(map(str, (folder, package))),
            "NO_COLOR": "1",
            **(environment or {}),
        }
        self._installed = False
        for name, value in {"NO_COLOR": "1", **(environment or {})}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))

    def read(self, path: Path) -> int:
        """Do all that a page says; give back how many blocks it has."""
        loaded = set(sys.modules)
        page = path.read_text(encoding="utf-8")
        count = 0
        try:
            for count, block in enumerate(blocks(page), 1):
                self._do(block, path.name)
        finally:
            for name in set(sys.modules) - loaded:
                origin = getattr(sys.modules[name], "__file__", None) or ""
                if origin.startswith(str(self.folder)):
                    del sys.modules[name]
        assert count, f"{path.name} has no code block"
        return count

    def _do(self, block: Block, page: str) -> None:
        place = f"{page}:{block.line}"
        if block.file is not None:
            target = self.folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
            if target.name == "pyproject.toml":
                self._install(block.text)
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), self.names)
        elif block.language == "console" and block.text.startswith(">>>"):
            self._session(block, place)
        elif block.language == "console" and block.text.startswith("$"):
            self._shell(block, place)
        else:
            pytest.fail(f"{place}: a block of {block.language or 'no language'} is not run")

    def _session(self, block: Block, place: str) -> None:
        test = doctest.DocTestParser().get_doctest(
            block.text, self.names, place, place.rpartition(":")[0], block.line - 1
        )
        runner = doctest.DebugRunner(self.checker, optionflags=_OPTIONS)
        try:
            runner.run(test, clear_globs=False)
        except doctest.DocTestFailure as failure:
            pytest.fail(f"{place}: {failure.example.source}shows\n{failure.got}")
        except doctest.UnexpectedException as failure:
            raise failure.exc_info[1] from None
        self.names.update(test.globs)

    def _shell(self, block: Block, place: str) -> None:
        message = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        code = 0
        for number, text in enumerate(message):
            match = re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", text, re.DOTALL)
            assert match is not None
            command, shown = match[1], match[2].strip("\n")
            if command == INSTALL:
                continue
            if command == "echo $?":
                assert shown == str(code), f"{place}: the exit code is {code}, not {shown}"
                continue
            code, printed = self._run(command)
            requests = number + 1 < len(message) and message[number + 1].startswith("echo $?")
            assert code == 0 or requests, f"{place}: {command}: exit {code}\n{printed}"
            if shown and not self.checker.check_output(shown + "\n", printed, _OPTIONS):
                pytest.fail(f"{place}: {command} shows\n{printed}")

    def _run(self, command: str) -> tuple[int, str]:
        """Return the exit code of a command and what it prints.

        A loop runs its body once per word, as a shell does.
        """
        line = command.replace("\\\n", " ")
        loop = _LOOP.match(line)
        if loop is None:
            return self._run_line(line)
        variable, words, body = loop.groups()
        runs = [self._run_line(body.replace(f"${variable}", word)) for word in words.split()]
        return runs[-1][0], "".join(printed for _, printed in runs)

    def _run_line(self, line: str) -> tuple[int, str]:
        first, _, behind = line.partition("|")
        is_quiet = _QUIET in first
        first = first.replace(_QUIET, "")
        words = shlex.split(first)
        is_plain = (
            words[0] == "tvm-distir" and words[1:] and (words[1] in _PLAIN or ":" in words[1])
        )
        if not is_plain or self._installed or re.search(r"[<>;&$]", first) or behind[:1] == "|":
            self._installed = self._installed and words[0] != "tvm-distir"
            return self._in_shell(line)
        code, printed = self._run_here(words[1:], merged=not behind and not is_quiet)
        return self._in_shell(behind, printed) if behind else (code, printed)

    def _in_shell(self, command: str, given: str = "") -> tuple[int, str]:
        """Run a command by the shell, with a text as its input."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            input=given,
            text=True,
            timeout=_SECONDS,
        )
        return done.returncode, done.stdout

    def _run_here(self, arguments: list[str], merged: bool) -> tuple[int, str]:
        """Run the command in this process; what it prints has its messages where ``merged``."""
        from tvm_distir.interface.command import main

        printed = io.StringIO()
        messages = printed if merged else io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tvm_distir.planning, "StageMemo", lambda: _STAGES)
            patch.setattr(serving_engine, "Surface", _surface)
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(messages):
                code = main(arguments)
        return code, printed.getvalue()

    def _install(self, text: str) -> None:
        """Make the entry points of a ``pyproject.toml`` known, as ``pip install -e .`` does."""
        group, lines = "", []
        for line in text.splitlines():
            table, entry = _TABLE.match(line), _ENTRY.match(line)
            if line.startswith("["):
                group = table[1] if table else ""
                lines += [f"[{group}]"] if group else []
            elif group and entry:
                lines.append(f"{entry[1]} = {entry[2]}")
        assert lines, "the pyproject.toml of the page has no entry point"
        info = self.folder / "page-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: page\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        registry._offers.cache_clear()
        importlib.invalidate_caches()
        self._installed = True

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Commands that README and docs show: each can be read, its strategy and system are known."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from tvm_distir.hardware.systems.system import System
from tvm_distir.interface.command.app import parse_words
from tvm_distir.planning import strategies as strategy

ROOT = Path(__file__).parents[3]


def script():
    """The script that runs them all."""
    path = ROOT / "scripts" / "docs_tools" / "docs_commands.py"
    spec = importlib.util.spec_from_file_location("docs_commands", path)
    module = sys.modules["docs_commands"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = script()
SHELL = {"|", "||", "&&", ">", "2>", "2>&1"}
"""Words that end the arguments of a command."""
COMMANDS = [
    (page.name, command)
    for page in runner.pages()
    for command in runner.commands(page.read_text(encoding="utf-8"))
]


def test_commands_are_found():
    assert len(COMMANDS) > 30
    assert {"README.md", "quickstart.md", "training.md", "models.md"} <= {p for p, _ in COMMANDS}


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_can_be_read(page, command):
    words = list(takewhile(lambda word: word not in SHELL, shlex.split(command)[1:]))
    arguments = parse_words(words)
    inputs = getattr(arguments, "strategy", None)
    for text in inputs if isinstance(inputs, list) else [inputs] if inputs else []:
        strategy.parse(text)
    systems = getattr(arguments, "system", None) or []
    for system in systems if isinstance(systems, list) else [systems]:
        System.load(system)


def test_files_that_commands_read_have_stand_ins(tmp_path):
    runner.write_files(tmp_path)
    there = {path.name for path in tmp_path.iterdir()} | set(runner.EXTRAS)
    created = {"folder", "found", "step.json", "cut.py", "local.json", "mine.json", "y.npz"}
    created.add("program.json")  # the pass "export" writes it
    created |= {"config.json", "step/program.json"}
    for page, command in COMMANDS:
        for word in shlex.split(command)[1:]:
            name = word.partition("?")[0].partition("::")[0]
            if Path(name).suffix in (".py", ".onnx", ".json", ".npz", ".csv", ".mlir", ".pt2"):
                assert name in there | created, f"{page}: {name} of {command}"

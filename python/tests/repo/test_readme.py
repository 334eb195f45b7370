# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the README says is true: its example is run, its links and commands exist."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.loaded_script import loaded_script


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """``scripts/docs_tools/update_readme.py`` as a module."""
    return loaded_script("update_readme")


def test_example_prints_what_the_readme_shows(text: str, writer: ModuleType) -> None:
    if shutil.which("tvm-distir", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("tvm_distir is not installed: scripts/setup test")
    slot = re.search(r"<!-- example:start -->\n.*?<!-- example:end -->", text, re.DOTALL)
    assert slot is not None and "$ tvm-distir analyze" in slot[0]
    shown, printed = slot[0], writer.regenerate(slot[0])
    assert writer.without_timings(shown) == writer.without_timings(printed), (
        "run .venv/bin/python scripts/docs_tools/update_readme.py"
    )


def test_slots_are_run_line_by_line(writer: ModuleType) -> None:
    head, tail = "a\n<!-- example:start -->\n", "<!-- example:end -->\nb"
    old = "```console\n$ echo one\nstale\n\n$ printf 't%s' \\\nwo\n```\n"
    new = "```console\n$ echo one\none\n\n$ printf 't%s' \\\nwo\ntwo\n```\n"
    assert writer.regenerate(head + old + tail) == head + new + tail


def test_a_failing_command_is_no_output(writer: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="exit 3"):
        writer.regenerate("<!-- example:start -->\n$ exit 3\n<!-- example:end -->")


def test_only_the_seconds_of_timing_blocks_are_ignored(writer: ModuleType) -> None:
    block = "x  1.00 s\n\nTime of this run\n  stage    time\n  load   {} s\n"
    assert writer.without_timings(block.format("1.25")) == writer.without_timings(
        block.format("10.5")
    )
    assert "x  1.00 s\n" in writer.without_timings(block.format("1.25"))


def test_links_lead_somewhere(root: Path, files: list[Path]) -> None:
    missing = []
    for path in files:
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", (root / path).read_text("utf-8")):
            if not (root / path.parent / target).exists():
                missing.append(f"{path}: {target}")
    assert missing == []


def test_the_two_commands_exist(root: Path, text: str) -> None:
    commands = re.findall(r"^\$ (scripts/\w+)", text, re.MULTILINE)
    assert commands == ["scripts/demo", "scripts/test"]
    assert all((root / command).is_file() for command in commands)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The runner of pages does what a page says, and fails where the page is wrong."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.docs.doc_runner import Reader


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text.replace("'''", "```"), encoding="utf-8")
    return path


def test_blocks_are_run_in_order_and_share_names(reader: Reader, tmp_path: Path) -> None:
    text = """
In `made/tool.py`:

'''python
def double(n):
    return 2 * n
'''

'''python
from made.tool import double
x = double(4)
'''

'''console
>>> x
8
>>> for line in ("a", "b", "c"):
...     print(line)
a
...
c
'''

'''console
$ python -c "from made.tool import double; print(double(5))"
10
$ exit 3
$ echo $?
3
$ printf 'one two ' > out.txt \\
  && wc -w < out.txt
2
'''
"""
    assert reader.read(page(tmp_path, text)) == 4
    assert (tmp_path / "out.txt").read_text() == "one two "
    assert "made.tool" not in sys.modules


def test_entry_points_of_a_project_are_known(reader: Reader, tmp_path: Path) -> None:
    text = """
`pyproject.toml`:

'''toml
[project]
name = "made"

[project.entry-points."tvm_distir.test_group"]
a-tool = "made.tool:double"
"b.tool" = "made.tool"
'''
"""
    reader.read(page(tmp_path, text))
    result = metadata.entry_points(group="tvm_distir.test_group")
    assert {(entry.name, entry.value) for entry in result} == {
        ("a-tool", "made.tool:double"),
        ("b.tool", "made.tool"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "'''python\nraise ValueError('planted')\n'''",
        "'''console\n>>> 1 + 1\n3\n'''",
        "'''console\n>>> 1 / 0\n'''",
        "'''console\n$ false\n'''",
        "'''console\n$ echo one\ntwo\n'''",
        "'''console\n$ false\n$ echo $?\n0\n'''",
        "'''mermaid\nnot run\n'''",
        "no block at all",
    ],
)
def test_a_wrong_page_fails(reader: Reader, tmp_path: Path, text: str) -> None:
    failures = (AssertionError, ArithmeticError, ValueError, pytest.fail.Exception)
    with pytest.raises(failures):
        reader.read(page(tmp_path, text))

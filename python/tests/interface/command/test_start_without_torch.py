# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The command does not import PyTorch, where it is installed, unless its arguments need it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTED = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"


@pytest.mark.parametrize(
    ("arguments", "imports"),
    [(["opt", "--help-passes"], False), (["opt", "--help-passes", "torch.py"], True)],
)
def test_torch_is_imported_where_the_arguments_name_it(
    tmp_path: Path, arguments: list[str], imports: bool
) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    # In place of PyTorch's: it notes that it is imported, and is not there.
    (folder / "__init__.py").write_text(NOTED + "raise ImportError('no PyTorch')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [sys.executable, "-m", "tvm_distir_command", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (folder / "imported").exists() == imports


def test_torch_can_be_imported_behind_tvm() -> None:
    pytest.importorskip("torch")
    program = """
import sys
sys.argv = ["tvm-distir", "opt"]
from tvm_distir_command import torch_hidden
with torch_hidden():
    import tvm_distir as td
assert "torch" not in sys.modules
mod = td.zoo.gpt(size="tiny", layers=1)
plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
report = td.verify(mod, plan, engine="threads", dispatch="torch")
assert "torch" in sys.modules and report.equal, report
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Neither the package nor the command imports PyTorch at its start, where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTED = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"


@pytest.mark.parametrize(
    "arguments",
    [["-c", "import tvm_distir"], ["-m", "tvm_distir_command", "opt", "--help-passes"]],
    ids=["package", "command"],
)
def test_torch_is_not_imported(tmp_path: Path, arguments: list[str]) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    # In place of PyTorch's: it notes that it is imported, and is not there.
    (folder / "__init__.py").write_text(NOTED + "raise ImportError('no PyTorch')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        timeout=300,
        check=True,
    )
    assert not (folder / "imported").exists()


def test_torch_can_be_imported_behind_tvm() -> None:
    pytest.importorskip("torch")
    program = """
import sys
import tvm_distir as td
assert "torch" not in sys.modules
mod = td.zoo.gpt(size="tiny", layers=1)
plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
report = td.verify(mod, plan, engine="threads", dispatch="torch")
assert "torch" in sys.modules and report.equal, report

import torch, tvm
tensor = torch.arange(6.0).reshape(2, 3)
shared = tvm.runtime.from_dlpack(tensor)
tensor[0, 0] = 7
assert shared.numpy()[0, 0] == 7 and torch.from_dlpack(shared).data_ptr() == tensor.data_ptr()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]

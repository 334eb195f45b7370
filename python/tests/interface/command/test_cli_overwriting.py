# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""No output takes the place of an input or of another output; what never ends is not read."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.interface.command.cli_inputs import write_inputs
from tvm_distir.interface.command import main
from tvm_distir.interface.command.outputs import Outputs
from tvm_distir.support.errors.tree import UsageError

PLACES = "--strategy data_parallel --mesh dp=2"
ANALYZE = f"{PLACES} --system dgx-a100"
PLANNED = "--plan plan.json --system dgx-a100"


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of inputs, with links to them."""
    write_inputs(tmp_path)
    (tmp_path / "link.onnx").symlink_to("mlp.onnx")
    os.link(tmp_path / "mlp.onnx", tmp_path / "hard.onnx")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.json").write_bytes((tmp_path / "plan.json").read_bytes())
    (tmp_path / "side").symlink_to(".")
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "main.so").write_bytes(b"library")
    (tmp_path / "sys.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    """Every file under the folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        f"analyze mlp.onnx {ANALYZE} --report mlp.onnx",
        f"analyze mlp.onnx {ANALYZE} --report ./mlp.onnx",
        f"analyze mlp.onnx {ANALYZE} --report side/mlp.onnx",
        f"analyze mlp.onnx {ANALYZE} --report link.onnx",
        f"analyze mlp.onnx {ANALYZE} --report hard.onnx",
        f"analyze link.onnx {ANALYZE} --trace mlp.onnx",
        f"analyze mlp.onnx --dim n=8 {ANALYZE} --trace mlp.onnx",
        f"analyze mlp.py::Module {ANALYZE} --trace mlp.py",
        f"analyze mlp.py {PLANNED} --trace plan.json",
        "analyze mlp.py --plan out/plan.json --system dgx-a100 -o out",
        f"analyze mlp.py {PLACES} --system sys.json --report sys.json",
        f"analyze mlp.py {ANALYZE} --report r.html --trace side/r.html",
        f"analyze mlp.py {ANALYZE} --report out/report.html -o side/out",
        f"analyze mlp.py {ANALYZE} --report new -o new",
        "simulate plan.json --system dgx-a100 --trace plan.json",
        "simulate plan.json --system sys.json --trace sys.json",
        "opt -p propagate mlp.py -o mlp.py",
        "opt -p annotate --plan plan.json mlp.py -o plan.json",
        "opt -p 'annotate{plan=\"plan.json\"}' mlp.py -o plan.json",
        "run folder --inputs a.npz -o a.npz",
        "run folder --inputs a.npz -o side/a.npz",
        f"deploy mlp.onnx {PLACES} --weights a.npz -o .",
        f"deploy mlp.onnx {PLACES} --weights folder -o folder",
    ],
)
def test_refused_before_the_work(
    command: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(inside)
    assert main(shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert err.startswith("DIST0151 ") and len(err.splitlines()) == 1 and out == ""
    assert content(inside) == before


def test_other_files_beside_the_inputs_are_written(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inside / "old.html").write_text("old")
    command = f"analyze mlp.onnx {ANALYZE} --report old.html --trace mlp.json -o new"
    assert main(shlex.split(command)) == 0, capsys.readouterr().err
    assert (inside / "old.html").read_text().startswith("<!")
    assert (inside / "new" / "1-global.py").is_file()


def test_a_file_of_the_folder_that_is_read(inside: Path) -> None:
    outputs = Outputs({"FOLDER": "folder"})
    outputs.reserve("folder/new.npz", "-o")
    with pytest.raises(
        UsageError, match=r"DIST0151 -o: .*main\.so is read by the command \(FOLDER\)"
    ):
        outputs.reserve("folder/main.so", "-o")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    ("command", "name", "exit_code", "code"),
    [
        (f"analyze odd.onnx {ANALYZE}", "odd.onnx", 1, "DIST0301"),
        (f"analyze odd.py {ANALYZE}", "odd.py", 1, "DIST0301"),
        ("opt -p propagate odd.py", "odd.py", 1, "DIST0301"),
        ("analyze mlp.py --plan odd.json --system dgx-a100", "odd.json", 1, "DIST0220"),
        ("opt -p annotate --plan odd.json mlp.py", "odd.json", 1, "DIST0220"),
        ("simulate odd.json --system dgx-a100", "odd.json", 1, "DIST0710"),
        (f"analyze mlp.py {PLACES} --system odd.json", "odd.json", 1, "DIST0702"),
        (f"deploy mlp.onnx {PLACES} --weights odd.npz -o new", "odd.npz", 1, "DIST0641"),
    ],
)
def test_what_may_never_end_is_refused_at_once(
    command: str, name: str, exit_code: int, code: str, kind: str, inside: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if kind == "pipe":
        os.mkfifo(inside / name)
    else:
        (inside / name).symlink_to("/dev/zero")
    assert main(shlex.split(command)) == exit_code
    out, err = capsys.readouterr()
    assert err.startswith(code) and out == "", err
    assert f"it is a {kind}" in err

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Output files appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import tvm_distir as td
from tvm_distir.interface.command import main
from tvm_distir.interface.command.outputs import Outputs
from tvm_distir.support.config.record import RECORD
from tvm_distir.support.errors.tree import UsageError


def left(folder: Path) -> list[str]:
    """Everything under a folder, hidden files too."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_files_are_written_on_commit_only(tmp_path: Path) -> None:
    outputs = Outputs()
    single = outputs.reserve(str(tmp_path / "a.txt"), "--one")
    folder = outputs.reserve_folder(str(tmp_path / "out"), "-o")
    assert folder is not None
    outputs.add(single, "text\n")
    outputs.add(folder / "b.bin", b"\x00\xff")
    outputs.add(folder / "c.txt", lambda path: Path(path).write_text("from a function"))
    assert left(tmp_path) == []
    output = outputs.commit()
    assert left(tmp_path) == ["a.txt", "out", f"out/{RECORD}", "out/b.bin", "out/c.txt"]
    assert [p.name for p in output] == ["a.txt", "b.bin", "c.txt"]
    assert (tmp_path / "a.txt").read_text() == "text\n"
    assert (folder / "b.bin").read_bytes() == b"\x00\xff"
    assert (folder / "c.txt").read_text() == "from a function"


def test_a_failing_writer_leaves_nothing_and_old_files_as_they_were(tmp_path: Path) -> None:
    old = tmp_path / "old.txt"
    old.write_text("old")
    outputs = Outputs()
    folder = outputs.reserve_folder(str(tmp_path / "out"), "-o")
    assert folder is not None
    outputs.add(outputs.reserve(str(old), "--one"), "new")

    def fail(path: str) -> None:
        Path(path).write_text("half")
        raise ValueError("the writer broke")

    outputs.add(folder / "b.txt", fail)
    with pytest.raises(ValueError, match="the writer broke"):
        outputs.commit()
    assert left(tmp_path) == ["old.txt"] and old.read_text() == "old"


def test_a_full_disk_is_a_usage_error_and_leaves_nothing(tmp_path: Path) -> None:
    outputs = Outputs()

    def fail(path: str) -> None:
        raise OSError(28, "No space left on device")

    outputs.add(outputs.reserve(str(tmp_path / "a.txt"), "--one"), "first")
    outputs.add(outputs.reserve(str(tmp_path / "b.txt"), "--two"), fail)
    with pytest.raises(UsageError, match=r"DIST0153 .*b\.txt.*No space left"):
        outputs.commit()
    assert left(tmp_path) == []


def test_modes_are_those_of_ordinary_files(tmp_path: Path) -> None:
    remaining = tmp_path / "kept.txt"
    remaining.write_text("x")
    remaining.chmod(0o600)
    outputs = Outputs()
    outputs.add(outputs.reserve(str(remaining), "--one"), "y")
    outputs.add(outputs.reserve(str(tmp_path / "new.txt"), "--two"), "z")
    outputs.commit()
    plain = tmp_path / "plain.txt"
    plain.write_text("")
    assert stat.S_IMODE(remaining.stat().st_mode) == 0o600
    assert (tmp_path / "new.txt").stat().st_mode == plain.stat().st_mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target.txt"
    target.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(target)
    outputs = Outputs()
    outputs.add(outputs.reserve(str(link), "--one"), "new")
    outputs.commit()
    assert link.is_symlink() and target.read_text() == "new"


def test_a_device_is_written_to_and_stays_one() -> None:
    outputs = Outputs()
    outputs.add(outputs.reserve(os.devnull, "--one"), "gone")
    outputs.add(outputs.reserve(os.devnull, "--two"), "gone too")
    outputs.commit()
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing/a.txt", "does not exist"),
        ("file/a.txt", "is not a folder"),
        (".", "it is a folder"),
        ("", "the path is empty"),
    ],
)
def test_bad_paths_are_refused_before_the_work(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=words):
        Outputs().reserve(str(tmp_path / path) if path else path, "--one")


def test_bad_folders_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, words in (
        (tmp_path / "file", "is not a folder"),
        (tmp_path / "no" / "such", "does not exist"),
    ):
        with pytest.raises(UsageError, match=words):
            Outputs().reserve_folder(str(path), "-o")


def test_read_only_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(UsageError, match="not writable"):
        Outputs().reserve(str(tmp_path / "a.txt"), "--one")
    with pytest.raises(UsageError, match="not writable"):
        Outputs().reserve_folder(str(tmp_path), "-o")


def test_one_path_for_two_outputs_is_refused(tmp_path: Path) -> None:
    outputs = Outputs()
    outputs.reserve(str(tmp_path / "a"), "--report")
    with pytest.raises(UsageError, match=r"DIST0151 .*--report and --trace both name"):
        outputs.reserve(str(tmp_path / "." / "a"), "--trace")


def test_what_a_folder_gets_stands_in_lines(tmp_path: Path) -> None:
    """A constant of 1 MB was one line of 1.4 MB, a program as a whole another one."""
    table = numpy_helper.from_array(np.arange(2**18, dtype=np.float32).reshape(8, 2**15), "t")
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["c"], value=table),
            helper.make_node("Add", ["x", "c"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 2**15])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 2**15])],
    )
    opsets = [helper.make_opsetid("", 17)]
    path, folder = str(tmp_path / "m.onnx"), tmp_path / "out"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    words = ["--strategy", "data_parallel", "--mesh", "dp=2", "--system", "dgx-a100"]
    assert main(["analyze", path, *words, "-o", str(folder)]) == 0
    for file in folder.iterdir():
        longest = max(map(len, file.read_text(encoding="utf-8").splitlines()))
        assert longest < 4000, (file.name, longest)
    result = td.from_tvmscript(folder / "1-global.py")
    tvm.ir.assert_structural_equal(result, td.from_onnx(path))
    assert len((folder / "program.json").read_text().splitlines()) > 10
    assert main(["simulate", str(folder / "program.json"), "--system", "dgx-a100"]) == 0

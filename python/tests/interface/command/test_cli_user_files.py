# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A folder of outputs loses no file that the user wrote or edited; a failed command none either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tvm_distir as td
from tests.interface.command.cli_inputs import write_inputs
from tvm_distir.interface.command import main
from tvm_distir.models import model as frontend

PLACES = "--strategy data_parallel --mesh dp=2"
ANALYZE = f"analyze mlp.py {PLACES} --system dgx-a100 --advice bounds"
COMMANDS = {
    "analyze": (f"{ANALYZE} -o out", ["plan.json", "report.html", "5-local.py"]),
    "deploy": (f"deploy mlp.py {PLACES} -o out", ["manifest.json", "main.so"]),
    "hta": ("simulate p.json --system dgx-a100 --trace out --trace-format hta", ["rank1.json"]),
    "chakra": (
        "simulate p.json --system dgx-a100 --trace out --trace-format chakra",
        ["trace.0.et", "comm_group.json"],
    ),
}
CASES = [(name, file) for name, (_, files) in COMMANDS.items() for file in files]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of inputs."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    mod = td.load_model("mlp.py").mod
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    td.export(td.distribute(mod, plan)).save("p.json")
    return tmp_path


def refused(command: str, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Run a command that must not replace a file."""
    capsys.readouterr()
    assert main(command.split()) == 1
    out, err = capsys.readouterr()
    assert err.startswith("DIST0160 ") and f"holds {name}" in err and "--force" in err, err
    assert out == "" and len(err.splitlines()) == 1


@pytest.mark.parametrize(("name", "file"), CASES)
def test_files_of_the_user_are_replaced_by_force_only(
    name: str, file: str, inside: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    command, _ = COMMANDS[name]
    target = inside / "out" / file
    target.parent.mkdir()
    target.write_text("by hand")
    with monkeypatch.context() as patch:  # refused before anything is read
        patch.setattr(frontend, "load_model", lambda *_, **__: pytest.fail("loaded"))
        refused(command, capsys, file)
    assert target.read_text() == "by hand" and list(target.parent.iterdir()) == [target]
    assert main([*command.split(), "--force"]) == 0, capsys.readouterr().err
    assert target.read_bytes() != b"by hand"
    assert main(command.split()) == 0, capsys.readouterr().err  # its own files
    target.write_bytes(target.read_bytes() + b" edited")
    edited = target.read_bytes()
    refused(command, capsys, file)
    assert target.read_bytes() == edited


def test_a_file_named_by_itself_is_replaced_and_stays_the_commands_own(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inside / "out").mkdir()
    (inside / "out" / "mine.html").write_text("by hand")
    for report in ("out/mine.html", "out/mine.html", "r.html"):
        assert main([*f"{ANALYZE} -o out --report {report}".split()]) == 0, capsys.readouterr().err
    assert main(f"{ANALYZE} --report out/report.html".split()) == 0
    assert main(f"{ANALYZE} -o out".split()) == 0, capsys.readouterr().err


@pytest.mark.parametrize("record", [b"", b"[1]", b'{"files": {"plan.json": 1}}', b"\xff"])
def test_a_broken_record_makes_all_files_the_users(
    record: bytes, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"{ANALYZE} -o out".split()) == 0
    (inside / "out" / ".tvm-distir.json").write_bytes(record)
    refused(f"{ANALYZE} -o out", capsys, "1-global.py")


def test_other_libraries_and_weights_of_a_deployed_folder_stay(inside: Path) -> None:
    deploy = f"deploy mlp.py {PLACES} -o out"
    assert main(deploy.split()) == 0
    (inside / "out" / "mine.safetensors").write_bytes(b"by hand")
    (inside / "out" / "README").write_text("by hand")
    assert main(deploy.split()) == 1
    assert main([*deploy.split(), "--force"]) == 0
    assert (inside / "out" / "mine.safetensors").read_bytes() == b"by hand"
    assert (inside / "out" / "README").read_text() == "by hand"
    td.load(inside / "out", check=True)


def test_a_search_that_failed_leaves_a_folder_for_the_corrected_one(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = "search mlp.py --devices 2 --system dgx-a100 -o found".split()
    assert main([*search, "--max", "dp=1,tp=1"]) == 3  # DIST0802: no mesh is left
    assert not (inside / "found").exists()
    assert main([*search, "--memory", "1KiB"]) == 3  # DIST0801: nothing fits
    capsys.readouterr()
    assert main(search) == 0, capsys.readouterr().err
    assert json.loads((inside / "found" / "search.json").read_text())["settings"]["memory"] is None

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The faults of TVM's passes are as recorded, and the texts about them say what is found."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

UPSTREAM = Path(__file__).resolve().parents[3] / "scripts" / "upstream"


def run_upstream(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(UPSTREAM / "run.py"), *options], capture_output=True, text=True
    )


@pytest.fixture
def load(monkeypatch):
    """Scripts of the folder as modules, while the test runs."""
    monkeypatch.syspath_prepend(str(UPSTREAM))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(UPSTREAM)):
            del sys.modules[name]


def states() -> dict:
    return json.loads((UPSTREAM / "states.json").read_text("utf-8"))


def test_the_faults_are_as_recorded():
    """All but those that end the process, in one process; issues and page are compared too."""
    done = run_upstream("--together", "--no-tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| take_vocabulary | wrong | yes |" in done.stdout


def test_an_altered_entry_is_found(tmp_path):
    altered = states()
    altered["versions"]["0.27"]["faults"]["matmul_conflict"] = "ok"
    path = tmp_path / "states.json"
    path.write_text(json.dumps(altered), encoding="utf-8")
    done = run_upstream("matmul_conflict", "--states", str(path))
    assert done.returncode == 1
    assert "| matmul_conflict | wrong | no: ok |" in done.stdout


def test_a_version_that_is_not_recorded_is_no_success(tmp_path):
    path = tmp_path / "states.json"
    path.write_text(json.dumps({"schema_version": 1, "versions": {}}), encoding="utf-8")
    done = run_upstream("matmul_conflict", "--states", str(path))
    assert done.returncode == 1
    assert "| matmul_conflict | wrong | no: not recorded |" in done.stdout


def test_an_unknown_name_is_a_fault_of_usage():
    done = run_upstream("no_such_fault")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no reproducer no_such_fault" in done.stderr


def test_every_fault_has_a_state_an_issue_and_a_test_that_fails(load):
    issue_text = load("issue_text")
    recorded = states()["versions"]["0.27"]
    assert "ok" not in recorded["faults"].values()
    for name, state in recorded["faults"].items():
        issue = issue_text.path_of(name).read_text("utf-8")
        assert issue == issue.replace("tvm_distir", "") and f"{state}\n```" in issue
        file, test = issue_text.named_test(name)
        keys = {file, f"{file}::{test}"}
        matches = {test: v for test, v in recorded["tests"].items() if test.split("[")[0] in keys}
        assert set(matches.values()) - {"passed"}, name


def test_every_version_is_recorded_with_the_reproducers_and_tests_that_there_are(load):
    judging = load("judging")
    files = {path.name for path in judging.TESTS.glob("test_*.py")}
    for version, recorded in states()["versions"].items():
        assert sorted(recorded["faults"]) == judging.fault_names(), version
        assert {name.partition("::")[0] for name in recorded["tests"]} == files, version


def test_reproducers_and_tests_know_stock_tvm_only():
    for folder in ("faults", "tests"):
        for path in (UPSTREAM / folder).glob("*.py"):
            assert "tvm_distir" not in path.read_text("utf-8"), path


def test_what_should_hold_holds_with_our_passes(load):
    """The tests of redistributions, of which each fails with TVM's; the script runs all."""
    run_tests, files = load("judging").run_tests, "test_10_redistribute_on_2d_mesh.py"
    theirs, ours = run_tests(False, files), run_tests(True, files)
    assert set(theirs.values()) == {"failed"}
    assert ours == dict.fromkeys(theirs, "passed")


def test_the_forum_example_inlined_is_answered_by_tvm(load, capsys):
    assert load("forum").main() == 0
    message = capsys.readouterr().out
    assert "structurally equal to what tvm_distir gives: True" in message
    assert "error: Argument 0 type mismatch" in message


def test_prepared_modules_pass_their_tests_on_the_wheel_alone(tmp_path):
    """The deep chain is left out: it takes as long as all others together."""
    command = [sys.executable, str(UPSTREAM / "prepare.py"), str(tmp_path), "--check"]
    done = subprocess.run([*command, "-k", "not deep_chain"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pieces, long = (int(count) for count in re.findall(r"^(\d+) passed", done.stdout, re.MULTILINE))
    assert pieces > 70 and long > 20
    for path in tmp_path.rglob("*.py"):
        text = path.read_text("utf-8")
        assert text.startswith("# Licensed to the Apache Software Foundation")
        assert "tvm_distir" not in text


def test_a_check_that_a_signal_ends_is_no_success(load, monkeypatch, tmp_path):
    prepare, codes = load("prepare"), iter([-11, 0])
    monkeypatch.setattr(prepare, "run_tests", lambda *_: next(codes))
    assert prepare.check(tmp_path, None, None) == 1


def test_pieces_are_small_and_numbered_in_order(load):
    """Each piece is at most 150 lines, and has tests and issues of its number."""
    order, issue_text = load("order"), load("issue_text")
    assert [each.piece for each in order.ORDER] == sorted((UPSTREAM / "pieces").glob("*.py"))
    assert [each.number for each in order.ORDER] == [f"{n:02}" for n in range(1, 10)]
    for each in order.ORDER:
        assert len(each.piece.read_text("utf-8").splitlines()) <= order.MOST_LINES == 150, each
        assert each.tests and each.checked and each.faults
        for file in {*each.tests, *each.checked}:
            assert len(file.read_text("utf-8").splitlines()) <= order.MOST_LINES, file
        assert {*map(order.contribution, each.needs)} <= {*order.ORDER[: int(each.number) - 1]}
    faults = [fault for each in order.ORDER for fault in each.faults] + [*order.RFC_FAULTS]
    assert sorted(faults) == load("judging").fault_names()
    assert {issue_text.path_of(fault) for fault in faults} == {*(UPSTREAM / "issues").glob("*.md")}


def test_issues_name_a_test_of_their_number_and_state_the_change(load):
    order, issue_text = load("order"), load("issue_text")
    for fault in load("judging").fault_names():
        number, text = order.number_of(fault), issue_text.path_of(fault).read_text("utf-8")
        assert issue_text.named_test(fault)[0].startswith(f"test_{number}_")
        assert ("## Change" in text) == (number != order.RFC)
        if "C++" in text:
            assert text.count("```cpp") >= 1


def test_the_docstring_of_a_piece_becomes_markdown(load):
    docstring = "Of ``a``, see :func:`f`::\n\n    int b;\n\n    int c;\n\nIt goes on."
    expected = "Of `a`, see `f`:\n\n```cpp\nint b;\n\nint c;\n```\n\nIt goes on."
    assert load("order").change_as_markdown(docstring) == expected


NATIVE_HEADER = """
    /*! \\brief tensor axis*/
    Path AddEdge(EdgeType type) { old }
    void PropagateShardingSpec() {
      old
  }
    void PropagateShardingSpec(Axis axis, old) {
    axis_sharding_specs_priority_[axis][spec] = path.GetPriority();
  }
    using FBuildAxisGraph
    """
"""Lines that stand for the class of a checkout, which is not here."""


def test_the_native_search_takes_the_lines_of_the_pieces(load):
    native = load("native_search")
    original, repaired, listed = native.versions(NATIVE_HEADER).values()
    assert "old }" in original and "old }" not in repaired
    assert "std::max(priority, path.GetPriority())" in repaired
    assert "pending" not in repaired and "pending.pop_back()" in listed
    assert "Axis axis, old" in repaired and "Axis axis, old" not in listed
    with pytest.raises(ValueError, match="the checkout has 0 places"):
        native.versions(NATIVE_HEADER.replace("AddEdge", "Add"))


@pytest.mark.parametrize(("line", "code"), [("0,0:0,0", 0), ("error: two specs", 1)])
def test_a_native_search_that_always_fails_is_no_success(load, monkeypatch, tmp_path, line, code):
    native, program = load("native_search"), tmp_path / "search"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{line}'\n", encoding="utf-8")
    program.chmod(0o755)
    path = tmp_path / native.HEADER
    path.parent.mkdir(parents=True)
    path.write_text(NATIVE_HEADER, encoding="utf-8")
    monkeypatch.setenv("TVM_DEVICE_BACKEND_AUTOLOAD", "0")  # which main sets
    monkeypatch.setattr(native, "build", lambda *_: program)
    monkeypatch.setattr(sys, "argv", ["native_search.py", str(tmp_path)])
    assert native.main() == code

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The faults of TVM's passes are as recorded, and the texts about them say what is found."""

from __future__ import annotations

import importlib
import json
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
    judging, issue_text = load("judging"), load("issue_text")
    recorded = states()["versions"]["0.27"]
    assert sorted(recorded["faults"]) == judging.fault_names()
    assert "ok" not in recorded["faults"].values()
    for name, state in recorded["faults"].items():
        issue = issue_text.path_of(name).read_text("utf-8")
        assert issue == issue.replace("tvm_distir", "") and f"{state}\n```" in issue
        file, test = issue_text.named_test(name)
        keys = {file, f"{file}::{test}"}
        matches = {test: v for test, v in recorded["tests"].items() if test.split("[")[0] in keys}
        assert set(matches.values()) - {"passed"}, name


def test_reproducers_and_tests_know_stock_tvm_only():
    for folder in ("faults", "tests"):
        for path in (UPSTREAM / folder).glob("*.py"):
            assert "tvm_distir" not in path.read_text("utf-8"), path


def test_what_should_hold_holds_with_our_passes(load):
    """The tests of redistributions, of which each fails with TVM's; the script runs all."""
    run_tests, files = load("judging").run_tests, "test_distributed_legalize_redistribute.py"
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
    assert "15 passed" in done.stdout
    for path in tmp_path.rglob("*.py"):
        text = path.read_text("utf-8")
        assert text.startswith("# Licensed to the Apache Software Foundation")
        assert "tvm_distir" not in text

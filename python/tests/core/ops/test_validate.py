# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The proof as authors of rules use it: the command, an installed package, missing placements."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from missing_placements import missing
from tvm import relax

import tvm_distir
from tvm_distir.core.ops import registry
from tvm_distir.execution.rule_validation.__main__ import main
from tvm_distir.execution.rule_validation.cases import Case, var
from tvm_distir.execution.rule_validation.collective_results import meaning
from tvm_distir.execution.rule_validation.proof import prove

op = relax.op
ROOT = Path(tvm_distir.__file__).resolve().parents[1]

PACKAGE = """
from tvm import relax
from tvm_distir.core.ops import SAME_OP, Draft, register_sharding_rule
from tvm_distir.execution.rule_validation import case, var

def examples():
    return [case(relax.op.flip(var(4, 6), 1))]

@register_sharding_rule("relax.flip", local=SAME_OP, examples=examples, override=True)
def flip(call):
    draft = Draft(call)
    draft.tie({0: 0}, {0: 0})
    draft.tie({0: 1}, {0: 1})
    return draft
"""


@pytest.fixture
def installed(tmp_path):
    """A distribution with a rule that is wrong along the dim that is reversed."""
    (tmp_path / "rules_of_flip.py").write_text(PACKAGE, encoding="utf-8")
    info = tmp_path / "flips-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flips\nVersion: 1.0\n")
    group = f"[{registry.ENTRY_POINT_GROUP}]\nflips = rules_of_flip\n"
    (info / "entry_points.txt").write_text(group, encoding="utf-8")
    return tmp_path


def run_python(command, *paths, cwd=None):
    path = os.pathsep.join(map(str, paths))
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_rule_of_an_installed_package_is_proved_like_others(installed):
    command = ["-m", "tvm_distir.execution.rule_validation", "--op", "relax.flip"]
    code, out, _ = run_python(command, installed, ROOT)
    assert code == 1
    assert "factor 1 over 2: result 0 differs" in out
    assert "factor 0" not in out
    assert out.splitlines()[-1].startswith("1 ops, 1 cases, 4 placements")


def test_the_script_proves_the_sources_it_stands_in(tmp_path):
    """Another tvm_distir that comes first on the path is not what is proved."""
    other = tmp_path / "tvm_distir"
    other.mkdir()
    (other / "__init__.py").write_text("raise SystemExit('another one')\n", encoding="utf-8")
    script = ROOT / "scripts" / "checks" / "check_rules.py"
    if not script.exists():
        pytest.skip("an installed package has no scripts")
    code, out, err = run_python([str(script), "--op", "relax.outer"], tmp_path, cwd=tmp_path)
    assert code == 0, err
    assert out.splitlines()[-1].endswith("0 wrong")


def test_an_op_without_cases_is_no_proof(capsys):
    assert main(["--op", "relax.nowhere"]) == 1
    assert capsys.readouterr().out.startswith("0 ops, 0 cases")


def test_a_missing_placement_is_found(monkeypatch):
    """What a rule leaves out, though the op's own results show it to be right."""
    case = Case("matmul", op.matmul(var(4, 6), var(6, 8)))
    assert missing([case]) == []
    message = registry._known["relax.matmul"]

    def without_rows(call):
        draft = message.write(call)
        draft._factors = [f for f in draft._factors if f.ins != (0, None)]
        return draft

    monkeypatch.setitem(
        registry._known, "relax.matmul", dataclasses.replace(message, write=without_rows)
    )
    monkeypatch.setattr(registry, "_generation", registry._generation + 1)
    assert [str(m) for m in missing([case])] == ["matmul: S(0), R -> S(0)"]


def test_a_missing_reduction_is_found(monkeypatch):
    case = Case("sum", op.sum(var(4, 6), axis=1))
    assert missing([case]) == []
    message = registry._known["relax.sum"]

    def kept(call):
        draft = message.write(call)
        draft._factors = [f for f in draft._factors if not f.reduces]
        return draft

    monkeypatch.setitem(registry._known, "relax.sum", dataclasses.replace(message, write=kept))
    monkeypatch.setattr(registry, "_generation", registry._generation + 1)
    assert [str(m) for m in missing([case])] == ["sum: S(1) -> P(sum)"]


def test_blocks_that_a_kernel_refuses_are_no_placements():
    """A slope for half the channels passes inference, and is refused where the kernel is made."""
    assert missing([Case("prelu", op.nn.prelu(var(2, 4), var(4), 1))]) == []


def test_collectives_mean_what_the_architecture_says():
    """Three devices that hold [1, 2], [3, 4] and [5, 6]."""
    stored = [np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([5.0, 6.0])]

    def lists(kind, **attrs):
        return [x.tolist() for x in meaning(kind, attrs, stored, 3)]

    assert lists("all_reduce", op="sum") == [[9, 12]] * 3
    assert lists("all_reduce", op="max") == [[5, 6]] * 3
    assert lists("all_gather", dim=0) == [[1, 2, 3, 4, 5, 6]] * 3
    assert lists("collective_permute", shift=1) == [[0, 0], [1, 2], [3, 4]]
    assert lists("collective_permute", shift=-2) == [[5, 6], [0, 0], [0, 0]]
    assert lists("axis_index") == [0, 1, 2]


def test_a_rule_that_forgets_linear_is_told_what_to_declare():
    cases = [Case(name, op.add(var(4, 6), var(4, 6))) for name in ("one", "other")]
    rules = [dataclasses.replace(c.rule(), linear=()) for c in cases]
    assert prove(cases, rules).hints() == []
    (hint,) = prove(cases, rules, hints=True).hints()
    assert hint.startswith(
        "relax.add is linear in the operands (0, 1), which its rule does not declare"
    )
    assert hint.endswith("Declare draft.linear((0, 1)).")

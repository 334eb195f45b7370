# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What ``scripts/checks/mutants.py`` plants, and which tests it takes."""

from __future__ import annotations

import ast
from pathlib import Path

import mutant_areas
import mutant_sites
import mutant_tests
import mutants as runner
import pytest

SOURCE = '''
"""A module."""
from __future__ import annotations

LIMIT = 3 + 4

def largest(values: list[int], least: int = 1) -> int | None:
    """Return the largest."""
    if not values or len(values) < least:
        raise ValueError(f"{len(values) + 1} values")
    best = 0
    for value in values:
        if value == 7:
            continue
        best = max(best, value * 2)
        print(best + 1, end="")
    values.append(best)
    return best
'''

EXPECTED = {
    ("negated", "not (not values or len(values) < least)"),
    ("negated", "not (value == 7)"),
    ("logic", "and"),
    ("comparison", "<="),
    ("comparison", "!="),
    ("constant", "1"),
    ("constant", "8"),
    ("constant", "3"),
    ("constant", "2"),
    ("jump", "break"),
    ("extreme", "min"),
    ("arithmetic", "//"),
    ("arithmetic", "-"),
    ("dropped", "pass"),
    ("returned", "None"),
}


@pytest.fixture(scope="module")
def mutants() -> list[mutant_sites.Mutant]:
    return mutant_sites.mutants_of("module.py", SOURCE.encode())


def test_bodies_of_functions_are_changed_and_nothing_else(
    mutants: list[mutant_sites.Mutant],
) -> None:
    assert {(mutant.kind, mutant.text) for mutant in mutants} == EXPECTED
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        changed = mutant.apply(SOURCE.encode()).decode()
        ast.parse(changed)
        assert changed.count("\n") == SOURCE.count("\n") and changed != SOURCE
        assert changed.splitlines()[mutant.line - 1] != SOURCE.splitlines()[mutant.line - 1]


def test_a_draw_follows_from_names_and_seed(mutants: list[mutant_sites.Mutant]) -> None:
    """Of each kind in turns; without a mutant that was not drawn, the draw is the same."""
    first = mutant_areas.draw(mutants, 8, 0)
    assert len({mutant.kind for mutant in first}) == 8
    assert mutant_areas.draw(reversed(mutants), 8, 0) == first
    assert mutant_areas.draw([m for m in mutants if m in first], 8, 0) == first
    assert any(mutant_areas.draw(mutants, 8, seed) != first for seed in range(1, 9))


def test_a_changed_source_notes_what_it_reaches() -> None:
    """Each run of statements once; a line belongs to the smallest run around it."""
    text = mutant_tests.noting("module.py", SOURCE)
    reached: list[str] = []
    head = "from tvm_distir.reached import note as _note\n"
    assert text.count(head) == 1
    names: dict[str, object] = {"_note": reached.append}
    exec(text.replace(head, ""), names)
    assert not reached
    assert names["largest"]([1, 7]) == 2  # type: ignore[operator]
    lines = SOURCE.splitlines()
    seen = [lines[int(key.partition(":")[2]) - 1].strip() for key in reached]
    assert seen[0].startswith("if not values") and seen[-1] == "values.append(best)"
    assert seen.count("continue") == 1 and not any("raise" in line for line in seen)
    for number, line in enumerate(lines, 1):
        if line.strip() == "continue":
            assert mutant_tests.run_at(SOURCE, number) == number


def test_tests_that_reach_a_line_come_first_and_the_quickest_of_each_file() -> None:
    tests: mutant_tests.Tests = {
        "a.py::slow": (9.0, ["x"]),
        "a.py::quick": (1.0, ["x"]),
        "a.py::other": (0.1, []),
        "b.py::quick": (2.0, ["x", "y"]),
        "c.py::none": (0.1, ["y"]),
    }
    order = ["a.py::quick", "b.py::quick", "a.py::slow", "a.py::other"]
    assert mutant_tests.nearest(tests, "x", 99.0) == order
    assert mutant_tests.nearest(tests, "x", 4.0) == [order[0], order[1], order[3]]
    assert mutant_tests.nearest(tests, "z", 99.0) == []


def test_survivors_are_mutants_with_a_cause() -> None:
    file = Path(mutant_areas.__file__).with_name("surviving_mutants.tsv")
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["id", "cause"]
    for name, cause in rows[1:]:
        area, path, _ = name.split(":", 2)
        source = (mutant_areas.ROOT / mutant_areas.PACKAGE / path).read_bytes()
        names = {mutant.name for mutant in mutant_sites.mutants_of(path, source)}
        assert path in mutant_areas.AREAS[area].paths()
        assert name.removeprefix(f"{area}:") in names and cause


@pytest.mark.parametrize(
    ("mutated", "plain", "kind"),
    [
        (0, 0, "survives"), (1, 0, "killed"), (None, 0, "hangs"),
        (None, None, "inconclusive"), (1, None, "inconclusive"), (1, 1, "inconclusive"),
    ],
)  # fmt: skip
def test_tests_that_do_not_pass_without_the_mutant_say_nothing(
    mutants: list[mutant_sites.Mutant],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mutated: int | None,
    plain: int | None,
    kind: str,
) -> None:
    """Its runs over their time counted as survival."""
    statuses = iter((mutated, plain))

    class Copy:
        folder = tmp_path

        def write(self, path: str, source: bytes) -> None:
            pass

        def pytest(self, *_: object, **__: object) -> tuple[int | None, str]:
            return next(statuses), ""

    (tmp_path / "module.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "PACKAGE", "")
    monkeypatch.setattr(runner, "nearest", lambda *_: ["test_it.py::test_it"])
    monkeypatch.setattr(runner, "run_at", lambda *_: 1)
    outcome, _ = runner.run_mutant(Copy(), mutants[0], "rules", {})
    assert outcome.kind == kind


def test_inconclusive_outcomes_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [*9 * ["killed"], "survives", *5 * ["inconclusive"]]
    outcomes = [runner.Outcome(f"rules:{n}", kind) for n, kind in enumerate(kinds)]
    assert runner.report(outcomes, {})
    assert "9 of 10 killed (90.0%), 5 inconclusive" in capsys.readouterr().out
    assert not runner.report(outcomes[9:], {})
    assert not runner.report(outcomes[10:], {})

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Several faults are one error that lists all of them."""

from __future__ import annotations

import pytest

from tvm_distir.support.errors.collector import Faults
from tvm_distir.support.errors.tree import (
    DistIRError,
    InternalError,
    MeshError,
    PlanError,
    Violation,
)


def gathered(*errors: BaseException) -> Faults:
    faults = Faults("plan.json", PlanError("DIST0228", "several"))
    for error in errors:
        with faults.gathered():
            raise error
    return faults


ONE = PlanError("DIST0221", "a", location="rules/0", remedy="Fix a.")
TWO = PlanError("DIST0221", "b", location="rules/1", remedy="Fix b.")
OTHER = MeshError("DIST0204", "c", location="rules/2", remedy="Fix b.")


def test_no_fault_is_no_error():
    faults = gathered()
    faults.raise_all()
    assert not faults


def test_one_fault_is_raised_as_it_is():
    with pytest.raises(PlanError) as caught:
        gathered(ONE).raise_all()
    assert caught.value is ONE


@pytest.mark.parametrize(
    ("errors", "kind", "code", "remedy"),
    [
        ((ONE, TWO), PlanError, "DIST0221", "Correct each of them."),
        ((TWO, OTHER), PlanError, "DIST0228", "Fix b."),
        ((OTHER, OTHER, OTHER), MeshError, "DIST0204", "Fix b."),
    ],
)
def test_several_faults_are_one_error(errors, kind, code, remedy):
    with pytest.raises(DistIRError) as caught:
        gathered(*errors).raise_all()
    result = caught.value
    assert (type(result), result.code, result.location, result.remedy) == (
        kind,
        code,
        "plan.json",
        remedy,
    )
    assert result.what == f"{len(errors)} faults"
    assert result.violations == tuple(v for e in errors for v in e.violations)
    head, *lines = str(result).splitlines()
    assert head == f"{code} plan.json: {len(errors)} faults [{remedy}]"
    assert lines == [f"  {error}" for error in errors]


def test_faults_of_faults_are_listed_flat():
    with pytest.raises(PlanError) as inner:
        gathered(ONE, TWO).raise_all()
    with pytest.raises(PlanError) as outer:
        gathered(inner.value, OTHER).raise_all()
    assert [v.what for v in outer.value.violations] == ["a", "b", "c"]


def test_a_bug_and_what_is_not_ours_are_raised_at_once():
    for error in (InternalError("DIST0901", "bug"), KeyError("k"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            gathered(ONE, error)


def test_a_long_text_is_cut_and_the_data_is_whole():
    with pytest.raises(PlanError) as caught:
        gathered(*[ONE] * 33).raise_all()
    lines = str(caught.value).splitlines()
    assert len(lines) == 22 and lines[-1] == "  ... and 13 more"
    assert caught.value.violations == (Violation("DIST0221", "a", "rules/0", "Fix a."),) * 33


def test_places_are_put_behind_another():
    with pytest.raises(PlanError) as caught:
        gathered(ONE, TWO).raise_all()
    moved = caught.value.placed(lambda place: f"in {place}")
    assert moved.location == "in plan.json"
    assert [v.location for v in moved.violations] == ["in rules/0", "in rules/1"]

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collectives that ran against those that ``export`` claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tvm_distir as td
from tests.execution.verification.test_verify_bisect import COLUMNS_THEN_ROWS, layered, plan
from tvm_distir.execution.runtime.program.counts import CollectiveCount, CollectiveCounter
from tvm_distir.execution.verification.collective_counts import (
    ExpectedCollective,
    claimed_collectives,
    differences,
)
from tvm_distir.execution.verification.verifying import verify
from tvm_distir.performance.program.mesh import Mesh
from tvm_distir.performance.program.parts import Entry, Function, Op
from tvm_distir.performance.program.program import Program
from tvm_distir.support.errors.tree import MismatchError


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize(
    ("axes", "rules"),
    [
        ({"tp": 2}, COLUMNS_THEN_ROWS),
        ({"dp": 2, "tp": 2}, [{"param": "x", "placement": "S[0], R"}]),
        ({"dp": 2, "tp": 2}, [{"param": "down", "placement": "S[0], S[1]", "stationary": True}]),
        ({"tp": 3}, [{"param": "last", "placement": "S[0]", "stationary": True}]),
    ],
)
def test_what_runs_is_what_is_claimed(engine, axes, rules):
    report = verify(layered(), plan(axes, rules), engine=engine)
    assert report.equal
    assert report.unlike_claims == ()
    claimed = [(c.kind, c.mesh_axis, c.group_size) for c in report.claims]
    assert claimed == [(c.kind, c.mesh_axis, c.group_size) for c in report.collectives]
    for claim, ran in zip(report.claims, report.collectives):
        assert claim.count == (ran.count, ran.count)
        assert claim.bytes_per_device == (ran.bytes_per_device, ran.bytes_per_device)


def test_something_is_claimed():
    report = verify(layered(), plan(rules=COLUMNS_THEN_ROWS))
    (claim,) = report.claims
    assert (claim.kind, claim.mesh_axis, claim.group_size) == ("all_reduce", "tp", 2)
    assert (claim.count, claim.bytes_per_device) == ((2, 2), (256, 256))


def test_transfers_between_meshes_are_claimed():
    meshes = {"a": {"axes": {"x": 2}}, "b": {"axes": {"y": 2}, "start": 2}}
    rules = [
        {"param": "up", "placement": "R", "mesh": "a"},
        {"param": "last", "placement": "S[0]", "mesh": "b", "stationary": True},
        {"value": "layer1", "placement": "S[1]", "mesh": "b", "stationary": True},
    ]
    the_plan = td.Plan.from_dict({"schema_version": 1, "meshes": meshes, "rules": rules})
    report = verify(layered(), the_plan)
    assert report.equal
    assert report.unlike_claims == ()
    assert ("send", "a->b", 2) in [(c.kind, c.mesh_axis, c.group_size) for c in report.claims]


def test_a_run_with_other_collectives_is_refused(monkeypatch):
    """An engine that counts one collective too many."""
    count = CollectiveCounter.collective

    def twice(self, *args):
        count(self, *args)
        count(self, *args)

    monkeypatch.setattr(CollectiveCounter, "collective", twice)
    report = verify(layered(), plan(rules=COLUMNS_THEN_ROWS))
    assert report.equal
    text = 'all_reduce along "tp" in groups of 2 ran 4 times, 2 claimed'
    assert report.unlike_claims == (text,)
    with pytest.raises(MismatchError, match=r"DIST0691 collectives: all_reduce.*2 claimed"):
        report.check()


COUNT = CollectiveCount("all_gather", "tp", 4, 3, 96, 72)
CLAIM = ExpectedCollective("all_gather", "tp", 4, (3, 3), (96, 96))


@pytest.mark.parametrize(
    ("claims", "ran", "text"),
    [
        ([CLAIM], [COUNT], None),
        ([replace(CLAIM, count=(2, 5))], [COUNT], None),
        ([], [COUNT], "ran 3 times, 0 claimed"),
        ([CLAIM], [], "ran 0 times, 3 claimed"),
        ([replace(CLAIM, count=(4, 5))], [COUNT], "ran 3 times, 4 to 5 claimed"),
        ([CLAIM], [replace(COUNT, bytes_per_device=128)], "gave 128 bytes, 96 claimed"),
        ([CLAIM], [replace(COUNT, kind="all_reduce")], "all_gather along"),
    ],
)
def test_differences(claims, ran, text):
    result = differences(claims, ran)
    assert (result == ()) if text is None else (text in "; ".join(result))


def _reducing(times):
    op = Op(
        "lv",
        "collective",
        "dist.all_reduce",
        (),
        (),
        collective="all_reduce",
        mesh_axes=(0,),
        group_size=2,
        payload_bytes=8,
    )
    return Function(0, (), (op,) * times, (), ())


def test_branches_claim_a_range_and_calls_add_up():
    call = Op("lv", "call", "f", (), (), callee="one")
    branch = Op("lv1", "branch", "If", (), (), callee="one", otherwise="three")
    functions = {
        "main": Function(0, (), (call, call, branch), (), ()),
        "one": _reducing(1),
        "three": _reducing(3),
    }
    mesh = Mesh("mesh0", ("tp",), (2,), (0, 1))
    program = Program((mesh,), functions, (Entry(0, "main"),))
    (claim,) = claimed_collectives(program)
    assert (claim.count, claim.bytes_per_device) == ((3, 5), (24, 40))

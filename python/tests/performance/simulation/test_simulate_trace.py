# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The trace file: what a viewer reads from it is what was simulated."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.performance.simulation.hand_programs import SYSTEM, Build, program, random_program
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.support.errors.tree import UsageError


@pytest.fixture
def result():
    return simulate(random_program(np.random.default_rng(5)), SYSTEM)


def test_events_are_those_of_the_result(result, tmp_path):
    path = tmp_path / "t.json"
    result.to_perfetto(path)
    data = json.loads(path.read_text())
    assert data["schemaVersion"] == 1
    assert data["distributedInfo"]["world_size"] == len(result.devices) == 8
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    events = list(result.events)
    assert len(spans) == len(events)
    for span, event in zip(spans, events):
        assert (span["name"], span["pid"], span["cat"]) == (event.name, event.device, "kernel")
        assert span["ts"] == pytest.approx(event.start_s * 1e6)
        assert span["dur"] == pytest.approx(event.duration_s * 1e6)
        assert span["args"]["binding"] == event.args["binding"]
        assert span["args"]["stream"] == span["tid"]
    correlations = [span["args"]["correlation"] for span in spans]
    assert len(set(correlations)) == len(correlations)
    assert max(s["ts"] + s["dur"] for s in spans) == pytest.approx(result.time_s * 1e6)


def test_spans_of_a_thread_do_not_overlap(tmp_path):
    """A viewer draws overlapping spans of one thread as nested: two arrivals get two threads."""
    mains = {}
    for mesh in (0, 1):
        mains[f"main_mesh{mesh}"] = (
            Build(mesh).param("x").transfer("s", "x", "send", 5000 + mesh, 2, tag=mesh).done("s")
        )
    mains["main_mesh2"] = (
        Build(2).transfer("a", "", "recv", 5000, 0, tag=0).transfer("b", "", "recv", 5001, 1, tag=1)
        .compute("c", "a b", 1).done("c")
    )  # fmt: skip
    single = (("x",), (1,))
    result = simulate(program(single, single, single, **mains), SYSTEM)
    result.to_perfetto(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    threads = {}
    for span in events:
        if span["ph"] == "X":
            threads.setdefault((span["pid"], span["tid"]), []).append(span)
    assert len([key for key in threads if key[0] == 2]) == 3
    for spans in threads.values():
        for before, after in itertools.pairwise(spans):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(threads) <= named


def test_memory_counter(result, tmp_path):
    result.to_perfetto(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    for device, steps in result.memory_timeline.items():
        matches = [
            (e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["pid"] == device
        ]
        assert [size for _, size in matches] == [size for _, size in steps]
        assert [ts for ts, _ in matches] == pytest.approx([t * 1e6 for t, _ in steps])


def test_same_bytes_every_time(result, tmp_path):
    again = simulate(random_program(np.random.default_rng(5)), SYSTEM)
    result.to_perfetto(tmp_path / "a.json")
    again.to_perfetto(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_no_folder(result, tmp_path):
    with pytest.raises(UsageError) as caught:
        result.to_perfetto(tmp_path / "none" / "t.json")
    assert caught.value.code == "DIST0153"


def test_a_failure_leaves_the_old_file(result, tmp_path):
    path = tmp_path / "t.json"
    path.write_text("old")

    def broken():
        yield from ()
        raise RuntimeError("stop")

    lane = SimpleNamespace(devices=(0,), events=broken)
    failing = replace(result, lanes=(SimpleNamespace(traced=lambda: lane),))
    with pytest.raises(RuntimeError, match="stop"):
        failing.to_perfetto(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["t.json"]

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every fault of one rank, on threads and on processes: found in time, named, survived."""

from __future__ import annotations

import mmap
import re
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import fault_table as table
import pytest

from tvm_distir.execution.runtime.engines import termination as ends
from tvm_distir.support.errors.tree import DistIRError, EngineError

TIMEOUT_S = 0.5
GRACE_S = 1.0
CASES = [f for f in table.FAULTS if f.name in table.ENGINES["threads"].faults]


def failure_of(engine, fault):
    """Text of what the broken run raises."""
    if fault.interrupts:
        table.interrupt_soon()
    with pytest.raises((DistIRError, KeyboardInterrupt)) as caught:
        table.run_program(engine, fault)
    return "KeyboardInterrupt" if fault.interrupts else str(caught.value)


@pytest.mark.parametrize("fault", CASES, ids=[f.name for f in CASES])
def test_a_broken_rank_is_named_in_time_and_the_engine_goes_on(fault, monkeypatch):
    monkeypatch.setattr(table, "LONG_S", 6.0)  # a thread that sleeps cannot be ended
    table.run_program(table.engine_for("threads", 20))
    engine, before = table.engine_for("threads", TIMEOUT_S), set(table._named_memory())
    start_s = time.monotonic()
    text = failure_of(engine, fault)
    assert time.monotonic() - start_s < TIMEOUT_S + GRACE_S + 4  # of LONG_S
    assert re.search(fault.text, text, re.DOTALL), text
    assert not [n for n in table._named_memory() - before if "tvm" in n]
    table.run_program(table.engine_for("threads", 20))


def test_a_killed_process_of_the_engine_torch_is_named():
    pytest.importorskip("torch.distributed")
    killed = next(f for f in table.FAULTS if f.name == "killed")
    text = failure_of(table.engine_for("torch", 60), killed)
    assert re.search(killed.text, text, re.DOTALL), text


def test_ranks_that_do_not_end_after_another_one_get_the_timeout_and_the_grace(monkeypatch):
    now_s, failures = [0.0], []
    monkeypatch.setattr(ends.time, "monotonic", lambda: now_s[0])
    fabric = SimpleNamespace(
        failure=None, progress=lambda: 7, fail=lambda rank, error: failures.append(error.code)
    )
    watch = ends.TerminationWatch(fabric, [0, 1, 2], 1.0)
    assert watch.go_on([]) and watch.go_on([1])
    now_s[0] = 1.0
    assert watch.go_on([1]) and not failures
    now_s[0] += 0.01
    assert watch.go_on([1])
    assert failures == ["DIST0613"]
    fabric.failure = (0, EngineError("DIST0613", "late"))
    assert watch.go_on([1])
    now_s[0] += 2 * ends.GRACE_S
    assert not watch.go_on([1])


def test_a_row_of_the_table_is_a_process_with_an_exit_code():
    row = table.table_row("threads", table.ENGINES["threads"], table.FAULTS[0], 1.0)
    assert row["good"], row
    assert row["code"] == 1
    assert row["orphans"] == []


def test_memory_of_another_job_is_not_left_behind():
    folder = tempfile.mkdtemp(prefix="tvm_distir_test_", dir="/dev/shm")
    stored, left = (Path(folder) / name for name in ("held", "left"))
    names = {f"{Path(folder).name}/{each.name}" for each in (stored, left)}
    try:
        for each in (stored, left):
            each.write_bytes(bytes(4096))
        with stored.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert table._in_use(names) == {f"{Path(folder).name}/held"}
        assert not table._in_use(names)
    finally:
        shutil.rmtree(folder)


def test_a_row_that_finds_another_error_is_not_good(monkeypatch):
    wrong = table.Fault("worker raises", table.FAULTS[0].act, "no such text")
    row = table.table_row("threads", table.ENGINES["threads"], wrong, 1.0)
    assert not row["good"]

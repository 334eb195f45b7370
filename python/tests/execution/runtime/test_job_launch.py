# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a started job write down, and what their parent makes of it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tvm_distir.execution.runtime.engines import job_launch, termination
from tvm_distir.execution.runtime.engines.job_launch import (
    check_progress,
    has_failed,
    last_words,
    read_failures,
    run_rank,
)
from tvm_distir.support.errors.tree import EngineError


def test_a_module_that_a_rank_cannot_import_is_named(tmp_path):
    job = SimpleNamespace(preload=("no_such_module",), ranks=[0, 3], options={})
    assert not has_failed(job, tmp_path)
    failure = run_rank(job, tmp_path, 3, "engine mpi", lambda: None)
    assert str(failure).startswith("DIST0612 engine mpi: worker 3: ModuleNotFoundError: ")
    assert "no_such_module" in str(failure)
    assert has_failed(job, tmp_path)
    assert [str(error) for _, error in read_failures(job, tmp_path)] == [str(failure)]


def test_processes_that_are_all_stopped_are_found_after_the_timeout_and_the_grace(monkeypatch):
    now_s, ticks = [0.0], [5]
    monkeypatch.setattr(termination.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(job_launch, "ticks_of", lambda process: ticks[0])
    job, here = SimpleNamespace(ranks=[0, 1], timeout_s=1.0), [os.getpid()] * 2
    monitor = termination.ProgressMonitor()
    check_progress(monitor, job, here)
    now_s[0] = 1.0 + termination.GRACE_S
    check_progress(monitor, job, here)
    now_s[0] += 0.01
    with pytest.raises(EngineError, match=r"DIST0613.*ranks 0, 1 made no progress"):
        check_progress(monitor, job, here)
    ticks[0] += 1
    check_progress(monitor, job, here)


def test_the_last_words_of_a_process(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("one\n  two \n---\nthree\n")
    assert last_words(log, 2) == "two / three"
    log.write_text("\n***\n")
    assert last_words(log, 2) == ""

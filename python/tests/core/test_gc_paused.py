# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Pauses of Python's cycle collector: nested, concurrent, and where the work fails."""

from __future__ import annotations

import gc
import threading

import pytest

import tvm_distir as td
from tvm_distir.core.rewriting.collector import gc_paused
from tvm_distir.planning.strategies import zero


def test_the_last_of_nested_and_concurrent_pauses_ends_it() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with gc_paused():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    with gc_paused(), gc_paused():
        thread.start()
        entered.wait(60)
    assert not gc.isenabled()  # the other thread's pause goes on
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_failure_ends_the_pause() -> None:
    with pytest.raises(ZeroDivisionError), gc_paused():
        _ = 1 / 0
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_pauses_for_python_callers_too() -> None:
    def work(layers: int) -> None:
        mod = td.zoo.gpt(size="tiny", layers=layers)
        step = td.train_step(mod)
        program = td.export(td.distribute(step, zero(step, {"dp": 2})))
        td.simulate(program, "h100")

    work(1)  # imports what it needs
    runs: list[str] = []
    gc.callbacks.append(lambda phase, info: runs.append(phase))
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # Python's own
    try:
        work(24)
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*threshold)
    assert len(runs) <= 20  # between the calls, each of which makes a hundred thousand objects

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""All native collectives between threads against NumPy bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.performance.native import collective_cases as cases
from tests.performance.native.rank_threads import run_ranks
from tvm_distir.execution.runtime.collectives import native_library as native
from tvm_distir.support.errors.tree import EngineError

SEEDS = range(len(cases.DTYPES))


def fabric_of(ranks):
    return native.CclFabric(ranks, 20.0)


def first_error(got):
    return next((e for e in got.values() if isinstance(e, BaseException)), None)


@pytest.mark.parametrize("seed", SEEDS)
def test_threads(seed):
    ranks = [2, 5, 0, 3, 7, 1][: 2 + seed % 5]
    error = first_error(
        run_ranks(fabric_of(ranks), ranks, lambda r: cases.run_cases(r, ranks, seed))
    )
    assert error is None, error


def refused(body, text):
    got = run_ranks(fabric_of([0, 1, 2]), [0, 1, 2], body)
    for error in got.values():
        assert isinstance(error, EngineError), error
        assert error.code == "DIST0611"
    with pytest.raises(EngineError, match=text):
        raise got[0]


def call(name, x, arguments, out_shape):
    x = np.asarray(x)
    out = tvm.runtime.empty(out_shape, str(x.dtype))
    return cases.call(name, [[0, 1, 2]], x, arguments, out)


F = "float32"
WRONG = {
    "rank 1 called all_gather.*float64.* while rank 0 called all_gather.*float32": lambda r: call(
        "all_gather", np.ones(1, "float64" if r == 1 else F), [0], (3,)
    ),
    r"rank 2 called all_reduce\(op=prod\).* while rank 0 called all_reduce\(op=sum\)": lambda r: (
        call("all_reduce", np.ones(4, F), [r // 2], (4,))
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_calls_are_refused_by_all(text):
    refused(WRONG[text], text)


def test_memory_of_messages_is_used_again():
    """400 messages of 1 MiB do not need 400 MiB."""

    def body(rank):
        x = tvm.runtime.tensor(np.full(1 << 18, rank, F))
        for _ in range(50):
            for number in range(4):
                native.send(x, number, 1 - rank, b"x")
            for number in range(4):
                native.await_message(number, 1 - rank, "a message")
                native.take_message(number, 1 - rank, x)
        return float(x.numpy()[0])

    before = resident_bytes()
    got = run_ranks(fabric_of([0, 1]), [0, 1], body)
    assert set(got.values()) == {0.0, 1.0}
    assert resident_bytes() - before < 100 << 20


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

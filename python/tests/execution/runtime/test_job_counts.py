# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a job counts: reports of its steps do not grow with the steps before."""

from __future__ import annotations

import pytest

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.collectives.native_library import Executed
from tvm_distir.execution.runtime.collectives.transfers import Transfers
from tvm_distir.execution.runtime.engines.job_results import Ended, wait_for_end

pytestmark = pytest.mark.quick
STEPS = 50
MOVED = Transfer(7, (2,), ((0,), ((2,),), ()), ((1,), ((2,),), ()))


class Member(Transfers):
    """A process of a job of one rank that has run some steps."""

    rank, ranks = 0, [0]

    def __init__(self, steps):
        super().__init__()
        self.lengths = []
        for _ in range(steps):
            for size in (8, 16):
                self._executed[0]["all_reduce", ((0, 1),), size] += 1
            self._received[0][MOVED, 4] += 1

    _post = _take = None

    def exchange_texts(self, text, _):
        self.lengths.append(len(text))
        return [text]


Member.__abstractmethods__ = frozenset()


def test_reports_of_steps_have_no_counts():
    lengths = []
    for steps in (1, STEPS):
        member = Member(steps)
        (ended,) = wait_for_end(member, (), {}, "whole")
        assert ended == Ended(0, [], [], [])
        lengths += member.lengths
    assert lengths[0] == lengths[1]


def test_the_report_of_a_run_counts_each_collective_and_transfer():
    (ended,) = wait_for_end(Member(STEPS), (), {}, "whole", counted=True)
    assert ended.executed == [Executed("all_reduce", ((0, 1),), n, STEPS) for n in (8, 16)]
    assert ended.received == [(MOVED, 4)] * STEPS

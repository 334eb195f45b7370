# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Whole programs on every engine: the bits and the traffic of ``virtual``.

The values are inexact: a sum in another order has other bits.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.execution.runtime.mpi_cases import CASES
from tests.execution.runtime.test_runtime_mpi import needs_mpi
from tests.references.thread_fabric import ReferenceThreads
from tvm_distir.execution.runtime.engines.mpi.engine import MpiEngine
from tvm_distir.execution.runtime.engines.threads.engine import ThreadsEngine
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.joining import same_bits

ENGINES = {
    "threads": ThreadsEngine,
    "threads in Python": ReferenceThreads,
    "mpi": MpiEngine,
}
MARKS = {"mpi": [needs_mpi]}
RANKS = {"gpt_of_8": 8, "moe_of_8": 8, "cube": 8, "gpt": 4, "moe": 4, "all_to_all": 4, "example": 2}
SENDS = {
    "gpt": "all_reduce",
    "moe": "all_to_all",
    "moe_of_8": "exchange",
    "cube": "reduce_scatter",
    "example": "send",
}


@cache
def on_virtual(case):
    """A module, its inputs, and what ``virtual`` makes of them."""
    mod, inputs = CASES[case]()
    engine = VirtualEngine()
    return mod, inputs, engine.run(mod, inputs), engine.collectives


# A job of mpi starts a process per rank: of programs that differ in sizes alone it runs one.
ALIKE = {"gpt_of_8", "all_to_all", "one_mesh"}
#: Experts and transfers, of which it runs others every day: moe_of_8 and two_meshes; and a program
#: of three axes, whose collectives a job of test_runtime_mpi.py runs over each set of axes.
AT_NIGHT = {"moe", "example", "cube"}


def _marks(name, case):
    at_night = name == "mpi" and case in AT_NIGHT
    return [*MARKS.get(name, ()), *([pytest.mark.nightly] if at_night else [])]


RUNS = [
    pytest.param(name, case, marks=_marks(name, case))
    for name in ENGINES
    for case in sorted(CASES)
    if name != "mpi" or case not in ALIKE
]


@pytest.mark.parametrize(("name", "case"), RUNS)
def test_every_engine_gives_the_bits_of_virtual(name, case):
    mod, inputs, want, collectives = on_virtual(case)
    engine = ENGINES[name](60)
    got = engine.run(mod, inputs)
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
    assert engine.collectives == collectives


@pytest.mark.parametrize("case", sorted(RANKS))
def test_the_cases_have_so_many_ranks(case):
    meshes = on_virtual(case)[0].global_infos["mesh"]
    assert len({int(d) for mesh in meshes for d in mesh.device_ids}) == RANKS[case]


@pytest.mark.parametrize("case", sorted(SENDS))
def test_the_cases_hold_the_collective_they_are_for(case):
    assert SENDS[case] in {c.kind for c in on_virtual(case)[3]}

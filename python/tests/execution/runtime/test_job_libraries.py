# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The files from which the processes of jobs load their libraries."""

from __future__ import annotations

import tvm
from tvm import relax

import tvm_distir as td
from tests.execution.runtime.level5_modules import Level5, there_and_back
from tvm_distir.execution.runtime.engines.job_libraries import LIBRARIES
from tvm_distir.execution.runtime.program.lowered import LoweredProgram


def test_programs_of_one_hash_keep_their_own_libraries(monkeypatch):
    """TVM's structural hashes of unlike modules meet."""
    monkeypatch.setattr(LoweredProgram, "fingerprint", "the same")
    paths = []
    for op in (relax.op.add, relax.op.multiply, relax.op.add):
        build = Level5(td.device_mesh({"a": 2}))
        port = ((4, 4), "float32", "R")
        build.entry([("x", *port)], [("y", *port)], lambda bb, v, op=op: bb.emit(op(v, v)))
        program = LoweredProgram(build.get())
        paths.append(LIBRARIES.path(program, program.entries[0]))
    assert paths[0] == paths[2] != paths[1]
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_a_program_is_compiled_for_every_target_that_it_runs_on():
    """A run takes no library that a run within another ``with target:`` had made."""
    program = LoweredProgram(there_and_back())
    entry, created = program.entries[0], {}
    for level in (0, 1, 0):
        with tvm.target.Target({"kind": "llvm", "opt-level": level}):
            created.setdefault(level, []).append(LIBRARIES.path(program, entry))
    assert created[0][0] == created[0][1] != created[1][0]
    assert created[0][0].read_bytes() != created[1][0].read_bytes()

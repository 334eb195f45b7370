# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``torch``: collectives against their reference, whole programs against ``virtual``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_distir as td
from tests.child_processes import child_environment
from tests.execution.runtime.mpi_cases import CASES
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.support.errors.tree import EngineError

pytest.importorskip("torch.distributed")

from tvm_distir.execution.runtime.engines.torch.engine import TorchEngine
from tvm_distir.execution.runtime.engines.torch.failure_store import LostPeers
from tvm_distir.execution.runtime.engines.torch.process_groups import has_succeeded

PROGRAMS = Path(__file__).with_name("torch_programs.py")


def start(count, *words, expect=0):
    """Run a program of ``torch_programs.py`` with ``torchrun``; returns what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", str(PROGRAMS), *words]
    environment = child_environment(OMP_NUM_THREADS="1")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    message = done.stdout + done.stderr
    assert (done.returncode == 0) == (expect == 0), message
    return message


@pytest.mark.parametrize(("reduce", "check"), [("ordered", "check"), ("library", "")])
def test_every_collective_gives_the_bits_of_the_reference(reduce, check):
    message = start(4, "collectives", reduce, check)
    assert message.count(" right") == 4, message


def test_no_thread_is_in_the_library_when_a_process_ends():
    """It would return while the interpreter ends, and abort the process."""
    assert start(2, "left_open").count("left: []") == 2


def test_programs_of_all_processes_give_the_bits_of_virtual():
    names = ["two_meshes", "moe", "train_step", "pipeline"]
    message = start(4, "modules", *names)
    assert message.count(" right") == 4 * len(names), message
    most = [int(n) for n in re.findall(r"train_step right, (\d+) in flight", message)]
    assert len(most) == 4
    assert min(most) > 1, message


def test_a_job_can_be_used_again_after_a_failure():
    message = start(4, "recovers")
    assert message.count("DIST0602") == 4, message
    assert message.count(": right") == 4


def test_processes_that_run_different_modules_are_told():
    message = start(4, "other_module", expect=1)
    assert "DIST0631 engine torch: process 1 has another program" in message


def test_too_few_processes():
    message = start(2, "modules", "one_mesh", expect=1)
    assert "DIST0632 engine torch: the job has 2 processes, the program requires 4" in message


def test_from_a_plain_process_it_starts_its_workers():
    mod, inputs = CASES["one_mesh"]()
    want = td.run(mod, inputs, engine="virtual")
    engine = TorchEngine(60)
    got = engine.run(mod, inputs)
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
    assert [(c.kind, c.mesh_axis, c.count) for c in engine.collectives] == [("all_reduce", "tp", 1)]


def test_another_reduction_is_refused():
    with pytest.raises(EngineError, match=r'DIST0601 .*no reduction "orderd".*ordered'):
        TorchEngine(reduce="orderd")


class Work:
    """A work of gloo that ends between the timeout of a wait and the question whether it ended."""

    def __init__(self, error=None):
        self.error, self.waits = error, 0

    def wait(self, timeout):
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)

    def is_completed(self):
        return True


def test_a_work_that_ends_just_after_a_timeout_has_succeeded():
    assert has_succeeded(Work(), lambda late: "all_reduce", [1])
    with pytest.raises(LostPeers, match="Connection closed by peer"):
        has_succeeded(Work("Connection closed by peer"), lambda late: "all_reduce", [1])

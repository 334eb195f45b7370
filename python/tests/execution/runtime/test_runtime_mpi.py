# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine ``mpi``: collectives against their reference, whole programs against ``virtual``."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tvm_distir as td
from tests.child_processes import child_environment
from tests.execution.runtime.mpi_cases import CASES
from tvm_distir.execution.runtime.engines.job_libraries import LIBRARIES
from tvm_distir.execution.runtime.engines.mpi import launch as mpi_launch
from tvm_distir.execution.runtime.engines.mpi.engine import MpiEngine
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.interface.command import main
from tvm_distir.support.errors.tree import DependencyError, EngineError

PROGRAMS = Path(__file__).with_name("mpi_programs.py")
NO_MPI = "no MPI: mpi4py and mpiexec (the extra mpi) are not installed"


def has_mpi() -> bool:
    """Whether this environment has what the extra ``mpi`` installs."""
    beside = Path(sys.executable).with_name("mpiexec")
    launcher = beside.exists() or shutil.which("mpiexec") or shutil.which("mpirun")
    return bool(importlib.util.find_spec("mpi4py") and launcher)


needs_mpi = pytest.mark.skipif(not has_mpi(), reason=NO_MPI)


def start(count, *words, expect=0, timeout_s=120):
    """Run a program of ``mpi_programs.py`` as processes; returns what it printed."""
    command = [*mpi_launch.find_launcher(), "-n", str(count), sys.executable, str(PROGRAMS), *words]
    runtime_alone = str(int(words[0] in ("fault", "faults")))  # which compile nothing
    environment = child_environment(TVM_USE_RUNTIME_LIB=runtime_alone)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )
    message = done.stdout + done.stderr
    assert (done.returncode == 0) == (expect == 0), message
    return message


@pytest.fixture(scope="module")
def printed():
    """What a job of four processes printed that runs programs one after the other."""
    return start(4, "messages+recovers+collectives+run_modules", "two_meshes", "example")


@needs_mpi
def test_every_collective_gives_the_bits_of_the_reference(printed):
    assert len(re.findall(r"rank [0-3]: \d+ right", printed)) == 4, printed


@needs_mpi
def test_transfers_between_meshes(printed):
    assert printed.count(": messages right") == 4, printed


@needs_mpi
def test_a_job_can_be_used_again_after_a_failure(printed):
    assert printed.count("DIST0602") == 4, printed
    assert printed.count(": recovers right") == 4, printed


@needs_mpi
def test_the_same_program_as_every_process(printed):
    """Inputs whole and scattered from process 0, outputs whole and sharded.

    The example runs on two of the processes.
    """
    assert printed.count(": two_meshes right") == printed.count(": example right") == 4, printed


@needs_mpi
def test_processes_that_run_different_modules_are_told():
    message = start(4, "other_module", expect=1)
    assert "DIST0631 engine mpi: process 1 has another program" in message


@needs_mpi
def test_too_few_processes():
    message = start(2, "run_modules", "one_mesh", expect=1)
    assert "DIST0632 engine mpi: the job has 2 processes, the program requires 4" in message


@needs_mpi
def test_without_a_linker_the_processes_compile(monkeypatch):
    """For the target in scope here; nothing that was linked before is taken."""
    monkeypatch.setattr(LIBRARIES, "_recent", [])
    monkeypatch.setattr("tvm_distir.execution.runtime.program.lowered.find_compiler", lambda: None)
    mod, inputs = CASES["example"]()
    want = VirtualEngine().run(mod, inputs)
    got = MpiEngine(60).run(mod, inputs)
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


def test_no_mpi4py(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"DIST0111 engine mpi: .*requires mpi4py"):
        mpi_launch.find_launcher()


def test_no_launcher(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DependencyError, match="DIST0113 engine mpi: there is no mpiexec"):
        mpi_launch.find_launcher()


@needs_mpi
def test_a_launcher_that_cannot_be_started():
    mod, inputs = CASES["one_mesh"]()
    with pytest.raises(DependencyError, match=r"DIST0113 .*/nowhere/mpirun cannot be started"):
        MpiEngine(60, launcher=["/nowhere/mpirun"]).run(mod, inputs)


@needs_mpi
def test_a_launcher_of_another_mpi(tmp_path):
    """Each process then believes to be alone."""
    alone = tmp_path / "alone"
    alone.write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    alone.chmod(0o755)
    mod, inputs = CASES["one_mesh"]()
    with pytest.raises(DependencyError, match="4 processes were started, mpi4py sees 1"):
        MpiEngine(60, launcher=[str(alone)]).run(mod, inputs)


@needs_mpi
def test_verify_on_mpi_from_the_command_line(capsys):
    words = ["verify", "zoo:gpt?layers=1,hidden=32,heads=4,seq=8,vocab=64,batch=2"]
    words += ["--strategy", "megatron", "--mesh", "tp=2", "--engine", "mpi", "--json"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert '"engine": "mpi"' in printed
    assert '"equal": true' in printed


@needs_mpi
def test_rows_of_replicas_that_differ_are_named():
    """An output that should be replicated is not: its ranks are named, as on every engine."""
    from tvm import relax

    from tests.execution.runtime.level5_modules import Level5
    from tvm_distir.core.ir.operators import ops

    mesh = td.device_mesh({"a": 2})
    build = Level5(mesh)

    def body(bb, x):
        index = bb.emit(relax.op.astype(bb.emit(ops.axis_index(mesh, 0)), "float32"))
        return bb.emit(relax.op.add(x, index))

    build.entry([("x", (4,), "float32", "R")], [("y", (4,), "float32", "R")], body)
    with pytest.raises(EngineError, match='DIST0604 main/output 0 "y": ranks 0 and 1'):
        MpiEngine(60).run(build.get(), [np.zeros(4, "float32")])

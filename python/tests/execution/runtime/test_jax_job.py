# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engine xla and ``td.to_jax`` in a JAX job of two processes with two devices each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_distir as td

pytest.importorskip("jax")

from . import jax_job_member

PROCESSES = 2
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each process of the job has written."""
    folder = tmp_path_factory.mktemp("job")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    members = [
        subprocess.Popen(
            [sys.executable, jax_job_member.__file__, port, str(PROCESSES), str(i), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
        )
        for i in range(PROCESSES)
    ]
    try:
        errors = [member.communicate(timeout=TIMEOUT_S)[1].decode() for member in members]
    finally:
        for member in members:
            member.kill()
    assert [m.returncode for m in members] == [0] * PROCESSES, errors
    return [dict(np.load(folder / f"process{i}.npz")) for i in range(PROCESSES)]


@pytest.mark.parametrize("name", jax_job_member.PROGRAMS)
def test_every_process_has_the_results(name: str, job: list[dict[str, Any]]) -> None:
    dist, inputs = jax_job_member.program(name)
    expected = td.run(dist, inputs, engine="virtual")
    for results in job:
        for i, reference in enumerate(expected):
            got = results[f"{name}.{i}"]
            assert got.dtype == reference.dtype
            assert np.allclose(
                got, reference, rtol=1e-4, atol=1e-4 * np.abs(reference).max(initial=1)
            )


def test_each_process_holds_its_parts(job: list[dict[str, Any]]) -> None:
    dist, inputs = jax_job_member.program("uneven")
    (expected,) = td.run(dist, inputs, engine="virtual", outputs="sharded")
    parts = [sorted(key for key in results if key.startswith("part.")) for results in job]
    assert parts == [["part.0", "part.1"], ["part.2", "part.3"]]
    for results, names in zip(job, parts):
        for name in names:
            reference = expected.parts[int(name.removeprefix("part."))]
            assert np.allclose(results[name], reference, atol=1e-4)


def test_faults_are_named(job: list[dict[str, Any]]) -> None:
    for results in job:
        assert "DIST0631 engine xla: process 1 has another program" in str(results["refused"])
        assert "DIST0632 engine xla: the job has 4 devices" in str(results["too few"])
        assert "DIST0632 engine xla: process 1 of the job has none" in str(results["idle"])


def test_to_jax_runs_on_all_processes(job: list[dict[str, Any]]) -> None:
    dist, inputs = jax_job_member.even_program()
    (expected,) = td.run(dist, inputs, engine="virtual")
    seen = np.zeros(expected.shape, bool)
    for results in job:
        for key in (key for key in results if key.startswith("jax.")):
            starts = [int(n) for n in key.removeprefix("jax.").split("-")]
            part = results[key]
            box = tuple(slice(a, a + n) for a, n in zip(starts, part.shape))
            assert np.allclose(part, expected[box], atol=1e-4)
            seen[box] = True
    assert seen.all()

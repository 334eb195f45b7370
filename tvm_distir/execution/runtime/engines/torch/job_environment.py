# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Find the place of this process in a job from the environment variables of its launcher."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tvm_distir.execution.runtime.engines.loopback import LOOPBACK
from tvm_distir.support import EngineError

PORT = 29500
"""The port of the job's store where nothing else is known; the default of PyTorch."""

_FIRST_PORT, _PORTS = 20000, 20000


@dataclass(frozen=True)
class JobMembership:
    """The place of a process in a job.

    Attributes
    ----------
    launcher : str
    rank : int
        The number of the process.
    size : int
        The number of processes.
    local_rank : int
        The number of the process among those of its host.
    address : str
        The host of process 0.
    port : int
        The port of the job's store there.
    is_on_one_host : bool
        Whether all processes are on this host.
    has_store : bool
        Whether the launcher holds the job's store itself.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    is_on_one_host: bool = False
    has_store: bool = False


@dataclass(frozen=True)
class LauncherVariables:
    """The environment variables of a launcher.

    Attributes
    ----------
    name : str
    rank, size, local_rank : str
    local_size : str
        Empty where the launcher has no such variable.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str = ""


TORCHRUN = LauncherVariables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

LAUNCHERS = (
    TORCHRUN,
    LauncherVariables("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    LauncherVariables("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    LauncherVariables(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    LauncherVariables("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""The launchers that :func:`find_job_membership` knows, in the order in which it looks for them."""


def is_torchrun_process(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment is that of a process of ``torchrun``."""
    return TORCHRUN.rank in environ and TORCHRUN.size in environ and "MASTER_ADDR" in environ


def find_job_membership(environ: Mapping[str, str] = os.environ) -> JobMembership | None:
    """Return the place of this process in its job; None where no launcher started it.

    Parameters
    ----------
    environ : mapping of str
        ``MASTER_ADDR`` and ``MASTER_PORT`` count before what the launcher tells.

    Raises
    ------
    EngineError
        DIST0633 where the host of process 0 is not known, or a variable is no number.
    """
    for names in LAUNCHERS:
        if names.rank in environ and names.size in environ:
            return _membership(names, environ)
    return None


def _membership(names: LauncherVariables, environ: Mapping[str, str]) -> JobMembership:
    rank, size = _number(names.rank, environ), _number(names.size, environ)
    local_rank = _number(names.local_rank, environ) if names.local_rank in environ else rank
    address = environ.get("MASTER_ADDR") or _address(names, environ, size)
    if "MASTER_PORT" in environ:
        port = _number("MASTER_PORT", environ)
    elif "SLURM_JOB_ID" in environ:  # other jobs of the host use other ports
        port = _FIRST_PORT + _number("SLURM_JOB_ID", environ) % _PORTS
    elif address == LOOPBACK:  # the processes of a host have the same parent
        port = _FIRST_PORT + os.getppid() % _PORTS
    else:
        port = PORT
    local = _is_on_one_host(names, environ, size)
    has_store = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return JobMembership(names.name, rank, size, local_rank, address, port, local, has_store)


def _is_on_one_host(names: LauncherVariables, environ: Mapping[str, str], size: int) -> bool:
    return size == 1 or environ.get(names.local_size) == str(size)


def _number(name: str, environ: Mapping[str, str]) -> int:
    try:
        return int(environ[name])
    except ValueError as err:
        raise EngineError(
            "DIST0633",
            f'it is "{environ[name]}", which is no number',
            location=f"environment variable {name}",
            remedy="Start the process with torchrun, srun or mpirun.",
        ) from err


def _address(names: LauncherVariables, environ: Mapping[str, str], size: int) -> str:
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if hosts and names.name == "Slurm":
        return first_host(hosts)
    if _is_on_one_host(names, environ, size):
        return LOOPBACK
    raise EngineError(
        "DIST0633",
        f"process {environ[names.rank]} of {size} does not know the host of process 0",
        location="environment variable MASTER_ADDR",
        remedy="Set MASTER_ADDR to the name of that host for all processes, for example with "
        "mpirun -x MASTER_ADDR=host.",
    )


def first_host(hosts: str) -> str:
    """Return the first host of a list of Slurm, such as ``gpu[03-07,12],login1``."""
    head = re.match(r"([^\[,]*)(?:\[([^\],-]*)[^\]]*\]([^,\[]*))?", hosts)
    if head is None:
        return hosts
    return "".join(part or "" for part in head.groups())

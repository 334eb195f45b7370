# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Load torch.distributed, and wait for the works of its process groups."""

from __future__ import annotations

import atexit
import datetime
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.execution.runtime.engines.loopback import LOOPBACK, LOOPBACK_NAME
from tvm_distir.support import EngineError, missing_extra

from .failure_store import LostPeers
from .job_environment import JobMembership, find_job_membership

if TYPE_CHECKING:
    from torch import distributed as dist


_POLL_S = 0.05


def load_torch() -> Any:
    """Return the module ``torch``.

    Raises
    ------
    DependencyError
        DIST0111 without torch, or with one that was built without torch.distributed.
    """
    try:
        import torch

        if torch.distributed.is_available():
            return torch
    except ImportError:
        pass
    problem = "the engine torch requires PyTorch with torch.distributed"
    raise missing_extra(problem, "engine torch", "torch")


def is_initialized() -> bool:
    """Return whether this process has joined a job."""
    return bool(load_torch().distributed.is_initialized())


@dataclass(frozen=True)
class RankGroup:
    """The process group of some ranks.

    Attributes
    ----------
    ranks : tuple of int
        The device ids, in the order of the group.
    processes : tuple of int
        Their processes, in the same order.
    data : ProcessGroup
        The group over which data moves; its order is that of the processes.
    control : ProcessGroup
        The group over which arrays of the host move.
    """

    ranks: tuple[int, ...]
    processes: tuple[int, ...]
    data: dist.ProcessGroup
    control: dist.ProcessGroup

    @property
    def positions(self) -> list[int]:
        """Return the position in the process group of each rank."""
        order = sorted(self.processes)
        return [order.index(p) for p in self.processes]

    @property
    def is_ordered(self) -> bool:
        """Return whether the order of the group is that of the processes."""
        return list(self.processes) == sorted(self.processes)


class MessageWork:
    """A send or receive of gloo, which can be waited for only once, as a work like any other.

    Parameters
    ----------
    work : torch.distributed.Work
    """

    def __init__(self, work: dist.Work) -> None:
        self._work = work
        self._is_over = threading.Event()
        self._error: RuntimeError | None = None
        threading.Thread(target=self._wait, name="torch message", daemon=True).start()

    def _wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as err:
            self._error = err
        self._is_over.set()

    def wait(self, timeout: datetime.timedelta) -> None:
        """Wait; RuntimeError after the timeout, or what the library raised."""
        if not self._is_over.wait(timeout.total_seconds()):
            raise RuntimeError("not completed")
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        """Return whether the wait is over."""
        return self._is_over.is_set()


def has_succeeded(
    work: dist.Work | MessageWork, describe: Callable[[list[int]], str], processes: Sequence[int]
) -> bool:
    """Wait for a work of gloo for a moment; returns whether it has succeeded.

    Raises
    ------
    LostPeers
        When the work has failed.
    """
    limit = datetime.timedelta(seconds=_POLL_S)
    try:
        work.wait(limit)
    except RuntimeError:
        if not work.is_completed():
            return False
        try:  # the wait may have timed out just before the work succeeded
            work.wait(limit)
        except RuntimeError as err:
            raise LostPeers(describe, processes, None, str(err).splitlines()[0]) from err
    return True


def not_started(process: int, size: int, timeout_s: float, err: BaseException) -> EngineError:
    """Return the error DIST0613 about processes that did not come."""
    return EngineError(
        "DIST0613",
        f"process {process} waited {timeout_s:g} s for the other {size - 1} to start the run: "
        f"{str(err).splitlines()[0]}",
        location="engine torch",
        remedy="Call run in every process of the job, in the same order.",
    )


def loopback_store(
    port: int, is_server: bool, timeout: datetime.timedelta, processes: int | None = None
) -> dist.TCPStore:
    """Return a store on the loopback address, which no other host reaches.

    Parameters
    ----------
    port : int
        Its port; 0 for any that is free.
    is_server : bool
        Whether this process holds the store. torch itself would listen on all addresses.
    timeout : timedelta
    processes : int, optional
        The number of processes that are waited for.
    """
    listening: dict[str, object] = {}
    if is_server:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((LOOPBACK, port))
        server.listen()
        port = server.getsockname()[1]
        listening["master_listen_fd"] = server.detach()
    store = load_torch().distributed.TCPStore
    return store(LOOPBACK, port, processes, is_server, timeout, processes is not None, **listening)


JOBS: list[Any] = []
"""The job of this process, if it has made one."""

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""The variables that name the network interface on which gloo and NCCL listen."""


def join_job(timeout_s: float) -> JobMembership:
    """Join the job that the environment variables name.

    Raises
    ------
    EngineError
        DIST0613 where the other processes do not come within the timeout, DIST0633 where the
        environment names no job.
    """
    dist = load_torch().distributed
    membership = find_job_membership()
    if membership is None:
        problem = "no launcher started this process"
        remedy = "Start it with torchrun, srun or mpirun."
        raise EngineError("DIST0633", problem, location="engine torch", remedy=remedy)
    limit = datetime.timedelta(seconds=timeout_s)
    options: dict[str, object] = {
        "rank": membership.rank,
        "world_size": membership.size,
        "timeout": limit,
    }
    try:
        if membership.is_on_one_host:
            os.environ.update({k: LOOPBACK_NAME for k in _INTERFACES if k not in os.environ})
        if membership.has_store:
            options["init_method"] = "env://"
        elif membership.is_on_one_host:
            is_first = membership.rank == 0
            options["store"] = loopback_store(membership.port, is_first, limit, membership.size)
        else:
            options["init_method"] = f"tcp://{membership.address}:{membership.port}"
        dist.init_process_group("gloo", **options)
    except (RuntimeError, ValueError) as err:
        raise not_started(membership.rank, membership.size, timeout_s, err) from err
    atexit.register(_leave)
    return membership


def _leave() -> None:
    """Leave the job at the end of the process.

    A thread that returns from the library while the interpreter ends would abort the process.
    """
    for job in JOBS:
        job.stop_answering()
    dist = load_torch().distributed
    if dist.is_initialized():
        dist.destroy_process_group()

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Join the torch.distributed job of this process, make its groups, and wait for its work."""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tvm_distir.execution.runtime.engines.job_launch import START_S
from tvm_distir.execution.runtime.engines.termination import GRACE_S
from tvm_distir.execution.runtime.program.communication import Communication
from tvm_distir.support import EngineError

from .failure_store import ENDED, ENDED_S, FailureStore, LostPeers
from .job_environment import find_job_membership
from .process_groups import (
    JOBS,
    MessageWork,
    RankGroup,
    has_succeeded,
    join_job,
    load_torch,
    not_started,
)

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

_EVENT_POLL_S = 0.0005


class TorchJob:
    """The torch.distributed job of this process, with groups of its own.

    Construction is collective: all processes of the job must do it, in the same order. A process
    that has not joined a job joins the one of its environment variables.

    Parameters
    ----------
    timeout_s : float
        The time for which a process waits for another process.
    device : str
        ``"cpu"``, with gloo, or ``"cuda"``, with NCCL.
    """

    _numbers = itertools.count()

    def __init__(self, timeout_s: float, device: str = "cpu") -> None:
        self.torch = load_torch()
        self.dist = self.torch.distributed
        self.timeout_s, self.device = timeout_s, device
        if not self.dist.is_initialized():
            join_job(max(timeout_s, START_S))
        self.process = int(self.dist.get_rank())
        self.size = int(self.dist.get_world_size())
        membership = find_job_membership()
        self.local_rank = self.process if membership is None else membership.local_rank
        if device == "cuda":
            self.torch.cuda.set_device(self.torch_device)
        self._prefix = f"tvm_distir/{next(self._numbers)}"
        self._groups: dict[tuple[int, ...], RankGroup] = {}
        self._channels: dict[tuple[int, int], dist.ProcessGroup] = {}
        self._runs = itertools.count()
        self.failures: FailureStore | None = None
        self.control = self._start()

    def _start(self) -> dist.ProcessGroup:
        try:
            return self.dist.new_group(backend="gloo", timeout=self._limit)
        except RuntimeError as err:
            raise not_started(self.process, self.size, self.timeout_s, err) from err

    @property
    def _limit(self) -> datetime.timedelta:
        """Return the timeout of groups, after which this class has given up already."""
        return datetime.timedelta(seconds=self.timeout_s + 2 * GRACE_S)

    @property
    def torch_device(self) -> torch.device:
        """Return the device of this process' tensors."""
        if self.device == "cpu":
            return self.torch.device("cpu")
        return self.torch.device("cuda", self.local_rank % self.torch.cuda.device_count())

    def begin(self, ranks: Sequence[int], location: str) -> FailureStore:
        """Begin a run: make the record of its failures, in place of that of the run before."""
        self.stop_answering()
        store = self.dist.distributed_c10d._get_default_store()
        run = f"{self._prefix}/{next(self._runs)}"
        prefixed = self.dist.PrefixStore(run, store.clone())
        self.failures = FailureStore(prefixed, self.process, ranks, location, self.timeout_s, run)
        return self.failures

    def stop_answering(self) -> None:
        """End the thread that tells other processes the state of this one."""
        if self.failures is not None:
            self.failures.close()

    # Groups ---------------------------------------------------------------------------------

    def make_groups(self, ranks: Sequence[int], communication: Communication) -> None:
        """Make the groups of a program, on all processes in the same order.

        A process takes part in the making of all groups: torch names a group by a count.

        Parameters
        ----------
        ranks : sequence of int
            The device ids; the i-th is process i.
        communication : Communication
        """
        for group in communication.groups:
            processes = tuple(ranks.index(r) for r in group)
            if processes not in self._groups:
                data = self._new_group(processes, self._backend)
                control = data if self.device == "cpu" else self._new_group(processes, "gloo")
                self._groups[processes] = RankGroup(tuple(group), processes, data, control)
        for source, destination in communication.transfers:
            pair = ranks.index(source), ranks.index(destination)
            if pair not in self._channels:
                self._channels[pair] = self._new_group(pair, self._backend)

    @property
    def _backend(self) -> str:
        return "nccl" if self.device == "cuda" else "gloo"

    def group(self, processes: Sequence[int]) -> RankGroup:
        """Return the group of some processes."""
        key = tuple(processes)
        if key not in self._groups:
            raise _unlisted(f"the group of processes {list(key)}")
        return self._groups[key]

    def channel(self, source: int, destination: int) -> dist.ProcessGroup:
        """Return the group for the messages of one process to another."""
        if (source, destination) not in self._channels:
            raise _unlisted(f"messages of process {source} to process {destination}")
        return self._channels[source, destination]

    def _new_group(self, processes: Sequence[int], backend: str) -> dist.ProcessGroup:
        words = f"the making of the group of processes {list(processes)}"
        try:
            return self.dist.new_group(list(processes), timeout=self._limit, backend=backend)
        except RuntimeError as err:
            waited_s = self.timeout_s if isinstance(err, self.dist.DistStoreError) else None
            detail = str(err).splitlines()[0]
            raise LostPeers(lambda late: words, processes, waited_s, detail) from err

    # Waits ----------------------------------------------------------------------------------

    def message(self, work: dist.Work) -> dist.Work | MessageWork:
        """Return a send or receive as a work for :meth:`finish`."""
        return work if self.device == "cuda" else MessageWork(work)

    def finish(
        self,
        work: dist.Work | MessageWork,
        describe: Callable[[list[int]], str],
        processes: Sequence[int],
    ) -> None:
        """Wait for a work of this process' groups; of NCCL, the stream waits and not the host.

        Parameters
        ----------
        work : torch.distributed.Work
        describe : callable
            Words for what is waited for, from the ranks that are missing.
        processes : sequence of int
            The processes that take part.

        Raises
        ------
        Aborted
            When another process has failed.
        LostPeers
            When a connection was closed, or the time is over.
        """
        if self.device == "cuda" and not isinstance(work, MessageWork):
            work.wait()
        else:
            self.finish_on_host(work, describe, processes)

    def finish_on_host(
        self,
        work: dist.Work | MessageWork,
        describe: Callable[[list[int]], str],
        processes: Sequence[int],
    ) -> None:
        """Wait for a work of gloo; see :meth:`finish`."""
        self.wait_until(lambda: has_succeeded(work, describe, processes), describe, processes)

    def wait_for_device(self, location: str) -> None:
        """Wait for the kernels and collectives of this process' GPU, if it has one."""
        if self.device == "cpu":
            return
        event = self.torch.cuda.Event()
        event.record()

        def is_done() -> bool:
            if event.query():
                return True
            time.sleep(_EVENT_POLL_S)
            return False

        self.wait_until(is_done, lambda late: f"the kernels of {location}", ())

    def wait_until(
        self,
        is_done: Callable[[], bool],
        describe: Callable[[list[int]], str],
        processes: Sequence[int],
    ) -> None:
        """Poll until something is done, a process fails, or the time is over.

        Raises
        ------
        Aborted
            When another process has failed.
        LostPeers
            When the time is over.
        EngineError
            DIST0610 when a process that is waited for has run to its end.
        """
        failures = self.failures
        if failures is None:
            raise LostPeers(describe, processes)
        begun_s = time.monotonic()
        ended_s: float | None = None
        before = failures.state
        has_ended = before == ENDED
        failures.state = ENDED if has_ended else f"waits in {describe([])}"
        while not is_done():
            failures.check()
            now_s = time.monotonic()
            if now_s - begun_s > self.timeout_s:
                raise LostPeers(describe, processes, self.timeout_s)
            if has_ended:
                continue
            ended = failures.ended(p for p in processes if p != self.process)
            ended_s = (ended_s or now_s) if ended else None
            if ended_s is not None and now_s - ended_s > ENDED_S:
                states = {self.process: failures.state, **dict.fromkeys(ended, ENDED)}
                raise failures.deadlock(states)
        failures.state = before

    def close(self) -> None:
        """Abandon the groups after a failure: their connections may hold parts of messages."""
        self.stop_answering()
        if self.device == "cuda":
            for group in self._groups.values():
                group.data._get_backend(self.torch_device).abort()


def _unlisted(subject: str) -> EngineError:
    problem = f"the program does not list {subject} among its groups and transfers"
    remedy = "Use the collectives R.dist.*, and deploy the program again."
    return EngineError("DIST0605", problem, location="engine torch", remedy=remedy)


def current_job(timeout_s: float, device: str) -> TorchJob:
    """Return the job of this process; made anew after a failure, or with other options."""
    if JOBS and (JOBS[0].timeout_s, JOBS[0].device) != (timeout_s, device):
        forget_job()
    if not JOBS:
        JOBS.append(TorchJob(timeout_s, device))
    job: TorchJob = JOBS[0]
    return job


def forget_job() -> None:
    """Abandon the groups of the job; the next run makes new ones."""
    while JOBS:
        JOBS.pop().close()

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Take part in a run of a torch.distributed job: agreement, inputs and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.collectives.fabric import ranks_text
from tvm_distir.execution.runtime.collectives.native_library import Executed

from .packed_calls import PackedCalls
from .torch_job import TorchJob

Array = npt.NDArray[Any]
_ARRAYS_TAG = 1


class TorchMember:
    """A member of a run in a torch.distributed job; see :class:`~.job_member.JobMember`.

    Parameters
    ----------
    job : TorchJob
    ranks : sequence of int
        The device ids; the i-th smallest is process i.
    reduce : str
        ``"ordered"`` or ``"library"``.
    check : bool
        Whether the ranks of a group compare each call before its data moves.
    """

    place = "engine torch"

    def __init__(self, job: TorchJob, ranks: Sequence[int], reduce: str, check: bool) -> None:
        self._job = job
        self.ranks = sorted(ranks)
        self.calls = (
            None if self.rank is None else PackedCalls(job, self.ranks, self.rank, reduce, check)
        )
        self._sending: list[tuple[Any, Any]] = []

    @property
    def size(self) -> int:
        """Return the number of processes of the job."""
        return self._job.size

    @property
    def rank(self) -> int | None:
        """Return the device id of this process; None for a surplus process."""
        here = self._job.process
        return self.ranks[here] if here < len(self.ranks) else None

    def process(self, rank: int) -> int:
        """Return the process that is a rank."""
        return self.ranks.index(rank)

    # Texts and arrays -----------------------------------------------------------------------

    def _wait(
        self, work: Any, describe: Callable[[list[int]], str], processes: Sequence[int]
    ) -> None:
        self._job.finish_on_host(work, describe, processes)

    def _tensor(self, data: Any) -> Any:
        return self._job.torch.from_numpy(np.frombuffer(data, np.uint8).copy())

    def exchange_texts(self, text: bytes, describe: Callable[[list[int]], str]) -> list[bytes]:
        """Exchange a few bytes with all processes; returns those of each."""
        torch, dist = self._job.torch, self._job.dist
        everyone = range(self.size)

        def words(late: list[int]) -> str:
            named = [self.ranks.index(r) if r in self.ranks else r for r in late]
            return describe(named or [p for p in everyone if p != self._job.process])

        sizes = [torch.zeros(1, dtype=torch.int64) for _ in everyone]
        mine = torch.tensor([len(text)])
        self._wait(
            dist.all_gather(sizes, mine, group=self._job.control, async_op=True), words, everyone
        )
        counts = [int(size) for size in sizes]
        padded = self._tensor(text.ljust(max(counts), b"\0"))
        rows = [torch.empty_like(padded) for _ in everyone]
        self._wait(
            dist.all_gather(rows, padded, group=self._job.control, async_op=True), words, everyone
        )
        return [row.numpy().tobytes()[:count] for row, count in zip(rows, counts)]

    def send_array(self, process: int, array: Array) -> None:
        """Send an array to a process; does not wait."""
        data = self._tensor(np.ascontiguousarray(array).tobytes())
        if not data.numel():
            return
        work = self._job.dist.isend(data, process, group=self._job.control, tag=_ARRAYS_TAG)
        self._sending.append((self._job.host_message(work), data))

    def receive_array(
        self, process: int, shape: tuple[int, ...], dtype: np.dtype[Any], label: str
    ) -> Array:
        """Wait for the next array of a process."""
        out = np.empty(shape, dtype)
        data = self._job.torch.empty(out.nbytes, dtype=self._job.torch.uint8)
        if out.nbytes:
            work = self._job.dist.irecv(data, process, group=self._job.control, tag=_ARRAYS_TAG)
            self._wait(self._job.host_message(work), lambda _: label, (process,))
        received: Array = data.numpy().view(dtype).reshape(shape)
        return received

    def share(
        self, rank: int, array: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        """Return a rank's array on every process; only that rank gives it."""
        process = self.process(rank)
        if array is None:
            data = self._tensor(bytes(np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))))
        else:
            data = self._tensor(np.ascontiguousarray(array).tobytes())
        if data.numel():
            work = self._job.dist.broadcast(data, process, group=self._job.control, async_op=True)
            self._wait(
                work,
                lambda late: f"output of rank {rank}{f' for {ranks_text(late)}' if late else ''}",
                [process],
            )
        if array is not None:
            return array
        shared: Array = data.numpy().view(dtype).reshape(shape)
        return shared

    def finish_sends(self) -> None:
        """Wait for what was sent."""
        for work, _ in self._sending:
            self._wait(work, lambda _: "sending inputs", ())
        self._sending.clear()

    # Counts ---------------------------------------------------------------------------------

    def executed(self, rank: int) -> list[Executed]:
        """Return collectives this process executed."""
        return [] if self.calls is None else self.calls.executed

    def received(self, rank: int) -> list[tuple[Transfer, int]]:
        """Return transfers a rank received, each with the bytes of an element."""
        return [] if self.calls is None else self.calls.received

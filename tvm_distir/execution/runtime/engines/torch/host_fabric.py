# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Exchange texts and arrays of the host between the processes of a torch.distributed job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tvm_distir.execution.runtime.collectives.fabric import ranks_text
from tvm_distir.execution.runtime.engines.job_fabric import JobFabric
from tvm_distir.execution.runtime.program.tensors import Array

from .process_groups import MessageWork
from .torch_job import TorchJob

if TYPE_CHECKING:
    import torch

_ARRAYS_TAG = 1


class HostFabric(JobFabric):
    """A fabric of a torch.distributed job, with its messages of texts and arrays of the host.

    Parameters
    ----------
    job : TorchJob
    ranks : sequence of int
        The device ids; the i-th smallest is process i.
    """

    def __init__(self, job: TorchJob, ranks: Sequence[int]) -> None:
        super().__init__(ranks, job.process, job.size, job.local_rank)
        self._job, self._torch, self._dist = job, job.torch, job.dist
        self._sent: list[tuple[Callable[[], None], torch.Tensor]] = []

    def exchange_texts(self, text: bytes, describe: Callable[[list[int]], str]) -> list[bytes]:
        """Exchange a few bytes with all processes; returns those of each."""
        everyone = range(self.size)

        def words(late: list[int]) -> str:
            named = [self.ranks.index(r) if r in self.ranks else r for r in late]
            return describe(named or [p for p in everyone if p != self.number])

        def gather(mine: torch.Tensor) -> list[torch.Tensor]:
            rows = [self._torch.empty_like(mine) for _ in everyone]
            work = self._dist.all_gather(rows, mine, group=self._job.control, async_op=True)
            self._job.finish_on_host(work, words, everyone)
            return rows

        counts = [int(size) for size in gather(self._torch.tensor([len(text)]))]
        rows = gather(self._on_host(text.ljust(max(counts), b"\0")))
        return [row.numpy().tobytes()[:count] for row, count in zip(rows, counts)]

    def _on_host(self, data: bytes) -> torch.Tensor:
        return self._torch.from_numpy(np.frombuffer(data, np.uint8).copy())

    def send_array(self, process: int, array: Array) -> None:
        """Send an array to a process; does not wait."""
        data = self._on_host(np.ascontiguousarray(array).tobytes())
        if data.numel():
            work = self._dist.isend(data, process, group=self._job.control, tag=_ARRAYS_TAG)
            wait = partial(
                self._job.finish_on_host, MessageWork(work), lambda _: "sending inputs", ()
            )
            self._sent.append((wait, data))

    def receive_array(
        self, process: int, shape: tuple[int, ...], dtype: np.dtype[np.generic], label: str
    ) -> Array:
        """Wait for the next array of a process."""
        out = np.empty(shape, dtype)
        data = self._torch.empty(out.nbytes, dtype=self._torch.uint8)
        if out.nbytes:
            work = self._dist.irecv(data, process, group=self._job.control, tag=_ARRAYS_TAG)
            self._job.finish_on_host(MessageWork(work), lambda _: label, (process,))
        received: Array = data.numpy().view(dtype).reshape(shape)
        return received

    def share(
        self, rank: int, array: Array | None, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Array:
        """Return a rank's array on every process; only that rank gives it."""
        mine = np.empty(shape, dtype) if array is None else array
        data = self._on_host(np.ascontiguousarray(mine).tobytes())
        if data.numel():
            process, control = self.process(rank), self._job.control
            work = self._dist.broadcast(data, process, group=control, async_op=True)
            self._job.finish_on_host(
                work,
                lambda late: f"output of rank {rank}{f' for {ranks_text(late)}' if late else ''}",
                [process],
            )
        shared: Array = data.numpy().view(dtype).reshape(shape)
        return shared if array is None else array

    def finish_sends(self) -> None:
        """Wait for what was sent."""
        for wait, _ in self._sent:
            wait()
        self._sent.clear()

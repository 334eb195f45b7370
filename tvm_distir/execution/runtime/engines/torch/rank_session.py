# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Call the entry function of a rank, also several times with tensors that stay on its device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from tvm_distir.execution.runtime.program.io_layout import EntryFunction
from tvm_distir.execution.runtime.program.machines import make_machine
from tvm_distir.execution.runtime.program.run_trace import RankTrace
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.tensors import flat_tensors

from .run_member import TorchMember
from .torch_job import TorchJob


class RankSession:
    """The compiled entry function of this rank, with the packed functions of its job.

    Parameters
    ----------
    job : TorchJob
    member : TorchMember
        A member that is a rank of the entry.
    program : Runnable
    entry : EntryFunction
    trace : RankTrace, optional
        The record of its calls.
    """

    def __init__(
        self,
        job: TorchJob,
        member: TorchMember,
        program: Runnable,
        entry: EntryFunction,
        trace: RankTrace | None = None,
    ) -> None:
        self._job, self._member, self.entry = job, member, entry
        library = program.library(entry)
        if member.calls is not None:
            member.calls.register()
        index = job.torch_device.index
        self._device = tvm.cpu() if index is None else tvm.cuda(index)
        self._machine = make_machine(library, self._device)
        if trace is not None:
            trace.attach(self._machine)

    def tensor(self, array: npt.NDArray[Any]) -> Any:
        """Return a tensor with a copy of an array on the device of this rank."""
        content = np.ascontiguousarray(array).reshape(array.shape)
        return tvm.runtime.tensor(content, self._device)

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        """Call the function with tensors of this rank's device; returns such tensors."""
        result = self._machine[self.entry.function](*inputs)
        if self._member.calls is not None:
            self._member.calls.finish()
        self._job.wait_for_device(self.entry.function)
        return flat_tensors(result)


class TorchRun:
    """A run of several steps in a torch.distributed job; see :class:`~.job_member.JobRun`.

    Parameters
    ----------
    job : TorchJob
    member : TorchMember
    program : Runnable
    """

    def __init__(self, job: TorchJob, member: TorchMember, program: Runnable) -> None:
        self._job, self.member, self._program = job, member, program
        self.process, self.local_rank = job.process, job.local_rank

    def prepare(self) -> None:
        """Make the process groups of the program."""
        self._job.make_groups(self.member.ranks, self._program.communication)

    def session(self, entry: EntryFunction, trace: RankTrace | None) -> RankSession:
        """Load the entry function of this rank."""
        return RankSession(self._job, self.member, self._program, entry, trace)

    def end(self) -> None:
        """Record in the job's store that this process has run to its end."""
        if self._job.failures is not None:
            self._job.failures.end()

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Execute and count the collectives and transfers of an entry's ranks."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import tvm

from tvm_distir.core.collectives import Collective, apply_groups, apply_local, counted_bytes
from tvm_distir.core.ir.operators import LOCAL_OPS
from tvm_distir.execution.runtime.engines.executed import count_transfer
from tvm_distir.execution.runtime.program.axis_table import AxisTable
from tvm_distir.execution.runtime.program.counts import CollectiveCounter
from tvm_distir.execution.runtime.program.io_layout import EntryFunction, np_dtype
from tvm_distir.execution.runtime.program.tensors import Array, to_array, to_tensor
from tvm_distir.support import EngineError

from .function_steps import CollectiveStep, TransferStep
from .rendezvous import MessageQueues, RendezvousTable

Value = Any
"""A tvm Tensor, or a (nested) tuple of them."""
PerRank = list[Value]


class Exchanges:
    """The exchanges between the entries of a run.

    Parameters
    ----------
    axes : AxisTable

    Attributes
    ----------
    counter : CollectiveCounter
    pending : dict of str to str
        Entries that cannot go on, and what they wait in.
    progress : int
        Grows with every step that an entry makes.
    """

    def __init__(self, axes: AxisTable) -> None:
        self.axes = axes
        self.counter = CollectiveCounter()
        self.pending: dict[str, str] = {}
        self.progress = 0
        self._messages = MessageQueues()
        self._rendezvous = RendezvousTable()

    def collective(
        self, step: CollectiveStep, values: PerRank | None, entry: EntryFunction
    ) -> Generator[None, None, PerRank]:
        """Yield the results of a collective of the entry's ranks, whose operands are ``values``."""
        call, ranks = step.collective, entry.ranks
        groups = {rank: self._group_of(call, rank, entry, step.location) for rank in ranks}
        operands: dict[int, Array] = {}
        if values is not None:
            operands = {rank: to_array(v) for rank, v in zip(ranks, values)}
        results: Mapping[int, Array]
        if call.name in LOCAL_OPS:
            results = {
                rank: apply_local(call, operands.get(rank), group.index(rank), len(group))
                for rank, group in groups.items()
            }
        elif all(rank in groups for group in call.groups for rank in group):
            results = apply_groups(call, operands)
        else:
            results = yield from self._meet(call, operands, entry, step.location)
        if call.groups[0][0] in groups:
            nbytes = counted_bytes(call, results[ranks[0]])
            axes = self.axes.name(call.groups)
            self.counter.collective(call.name, axes, len(call.groups[0]), nbytes)
        shared: dict[int, tvm.runtime.Tensor] = {}
        for result in (results[rank] for rank in ranks):
            if id(result) not in shared:
                shared[id(result)] = to_tensor(result)
        return [shared[id(results[rank])] for rank in ranks]

    @staticmethod
    def _group_of(
        call: Collective, rank: int, entry: EntryFunction, location: str
    ) -> tuple[int, ...]:
        """Return the group of a rank."""
        for group in call.groups:
            if rank in group:
                return group
        problem = f"ranks {list(call.groups[0])} are not on the mesh of {entry.function}"
        remedy = "Use collectives on a mesh that the function runs on."
        raise EngineError("DIST0611", problem, location=location, remedy=remedy)

    def _meet(
        self, call: Collective, operands: Mapping[int, Array], entry: EntryFunction, location: str
    ) -> Generator[None, None, Mapping[int, Array]]:
        """Yield the results of a collective with ranks of other entries.

        Yields until they are there.
        """
        shared = self._rendezvous.join(call, operands, location)
        while not shared.results:
            yield from self._wait(entry, location)
        self._go_on(entry)
        return shared.results

    def _wait(self, entry: EntryFunction, location: str) -> Generator[None, None, None]:
        """Let the other entries go on."""
        self.pending[entry.function] = f"ranks {list(entry.ranks)} in {location}"
        yield

    def _go_on(self, entry: EntryFunction) -> None:
        """Note that an entry waits no longer."""
        self.pending.pop(entry.function, None)
        self.progress += 1

    def send(self, step: TransferStep, values: PerRank, entry: EntryFunction) -> PerRank:
        """Let the values of the entry's ranks go to another mesh."""
        self._messages.post(step.transfer, {r: to_array(v) for r, v in zip(entry.ranks, values)})
        return values

    def receive(self, step: TransferStep, entry: EntryFunction) -> Generator[None, None, PerRank]:
        """Yield until the transfer from another mesh has arrived at the entry's ranks."""
        transfer = step.transfer
        while not self._messages.is_there(transfer, entry.ranks):
            yield from self._wait(entry, step.location)
        self._go_on(entry)
        dtype = np_dtype(step.dtype)
        out = self._messages.take(transfer, entry.ranks, dtype, step.location)
        if transfer.dst[1][0] in out:
            axes = self.axes.transfer_name(transfer)
            count_transfer(self.counter, axes, transfer, dtype.itemsize)
        return [to_tensor(out[rank]) for rank in entry.ranks]

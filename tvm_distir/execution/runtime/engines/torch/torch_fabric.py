# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Carry the arrays between the ranks of a torch.distributed job.

A step of a collective is a single call of gloo or NCCL in the group of its ranks: a gather where
all ranks get the same, else an exchange of parts. Data moves as bytes, because the libraries move
types that they cannot reduce. ``"ordered"`` reductions run in rank order, as those of all engines
(:mod:`tvm_distir.core.collectives.meaning`), and give their bits; ``"library"`` reductions are
those of gloo or NCCL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import tvm

from tvm_distir.core.collectives import Collective, Transfer, equal_parts
from tvm_distir.execution.runtime.collectives.fabric import ranks_text
from tvm_distir.execution.runtime.collectives.message_steps import CollectiveSteps, StepMessages
from tvm_distir.execution.runtime.collectives.posted_collectives import Posted
from tvm_distir.execution.runtime.collectives.transfers import ONE_MEANING, MessageKey
from tvm_distir.execution.runtime.program.communication import Communication
from tvm_distir.support import EngineError

from .call_checks import CallChecks, digest_of
from .host_fabric import HostFabric
from .process_groups import RankGroup, load_torch
from .tensor_operations import TorchArrays
from .torch_job import TorchJob

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

_BOOL_OPS = {"sum": "max", "max": "max", "prod": "min", "min": "min"}


_Arriving: TypeAlias = (
    "tuple[dict[int, torch.Tensor], tuple[dist.Work, ...], tuple[torch.Tensor, ...]]"
)
"""What arrives by position, its works, and memory that is in use until they end."""


class _LibraryCall(NamedTuple):
    """A step that a collective of the library does, into the memory of the result."""

    works: tuple[dist.Work, ...]
    memory: tuple[torch.Tensor, ...]


class TorchFabric(HostFabric):
    """A fabric of the ranks of a run in a torch.distributed job.

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

    location = "engine torch"

    def __init__(self, job: TorchJob, ranks: Sequence[int], reduce: str, check: bool) -> None:
        super().__init__(job, ranks)
        self._by_library = reduce == "library"
        self._checks = CallChecks(job) if check else None
        self.arrays = TorchArrays(job.torch_device)
        index = job.torch_device.index
        self.device = None if index is None else tvm.cuda(index)
        # The older names of the two are deprecated since torch 2.13.
        self._gather = getattr(self._dist, "all_gather_single", None) or (
            self._dist.all_gather_into_tensor
        )
        self._scatter = getattr(self._dist, "reduce_scatter_single", None) or (
            self._dist.reduce_scatter_tensor
        )

    def fail(self, rank: int, error: BaseException) -> None:
        """Record what a packed function raised. TVM hands on its text only."""
        self.failure = self.failure or (rank, error)

    # Collectives ----------------------------------------------------------------------------

    def _group(self, call: Collective) -> RankGroup:
        return self._job.group([self.process(r) for r in call.group_of(self.ranks[self.number])])

    def _begin(
        self, rank: int, call: Collective, x: torch.Tensor, into: torch.Tensor | None, blocks: bool
    ) -> Posted:
        if self._checks is not None:
            self._checks.compare(rank, self._words_of(call, x), self._group(call))
        return super()._begin(rank, call, x, into, blocks)

    def _steps_of(
        self, call: Collective, position: int, x: torch.Tensor, into: torch.Tensor | None
    ) -> CollectiveSteps:
        step = None if into is None else self._library_call(call, x, into)
        if step is None:
            return super()._steps_of(call, position, x, into)

        def steps() -> CollectiveSteps:
            yield step
            return into

        return steps()

    def _library_call(
        self, call: Collective, x: torch.Tensor, out: torch.Tensor
    ) -> _LibraryCall | None:
        """Start the collective of the library that writes the result itself, if there is one."""
        group, args = self._group(call), dict(call.args)
        options = {"group": group.data, "async_op": True}
        if call.name == "all_gather" and math.prod(x.shape[: args["dim"]]) == 1:
            if not group.is_ordered or not x.numel():
                return None
            work = self._gather(_as_bytes(out), _as_bytes(x), **options)
            return _LibraryCall((work,), (x, out))
        if not self._by_library:
            return None
        if call.name == "all_reduce":
            out.copy_(x)
            view, code = self._library_op(args["op"], out)
            return _LibraryCall((self._dist.all_reduce(view, code, **options),), (out,))
        if call.name == "reduce_scatter" and group.is_ordered and x.dtype != self._torch.bool:
            _, code = self._library_op(args["op"], out)
            parts = self._torch.stack(equal_parts(x, len(group.ranks), args["dim"]))
            work = self._scatter(out.reshape(-1), parts.reshape(-1), code, **options)
            return _LibraryCall((work,), (parts, out))
        return None

    def _library_op(self, op: str, x: torch.Tensor) -> tuple[torch.Tensor, dist.ReduceOp]:
        """Return a view that the library reduces, and its reduction."""
        ops = self._dist.ReduceOp
        if x.dtype == self._torch.bool:
            x, op = x.view(self._torch.uint8), _BOOL_OPS[op]
        return x, {"sum": ops.SUM, "prod": ops.PRODUCT, "min": ops.MIN, "max": ops.MAX}[op]

    def _post_step(self, rank: int, posted: Posted) -> None:
        step, group = posted.step, self._group(posted.call)
        if isinstance(step, _LibraryCall):
            posted.sent = [step.works, step.memory]
            return
        x: torch.Tensor = posted.x
        if not x.numel():
            posted.received = {i: x.new_empty(shape) for i, shape in step.shapes.items()}
            posted.sent = [(), ()]
            return
        parts = list(step.parts.values())
        is_gather = len(parts) == len(group.ranks) and all(part is parts[0] for part in parts)
        move = self._gathered if is_gather else self._exchanged
        posted.received, *posted.sent = move(step, posted.x, group)

    def _gathered(self, step: StepMessages, like: torch.Tensor, group: RankGroup) -> _Arriving:
        """Start to send the same array to all ranks of a group."""
        part: torch.Tensor = step.parts[0]
        x = part.contiguous()
        if len(set(step.shapes.values())) > 1:
            return self._exchanged(step, like, group)
        rows = x.new_empty((len(group.ranks), *step.shapes[0]))
        work = self._gather(_as_bytes(rows), _as_bytes(x), group=group.data, async_op=True)
        return dict(enumerate(rows[i] for i in group.positions)), (work,), (x, rows)

    def _exchanged(self, step: StepMessages, like: torch.Tensor, group: RankGroup) -> _Arriving:
        """Start to send an array to each of some ranks of a group, and to receive from some."""
        order = sorted(range(len(group.ranks)), key=lambda i: group.processes[i])
        empty = like.new_empty(0)
        parts: list[torch.Tensor] = [
            step.parts[i].reshape(-1) if i in step.parts else empty for i in order
        ]
        counts = [math.prod(step.shapes[i]) if i in step.shapes else 0 for i in order]
        sent, landing = self._torch.cat(parts), like.new_empty(sum(counts))
        size = like.element_size()
        work = self._dist.all_to_all_single(
            _as_bytes(landing),
            _as_bytes(sent),
            [count * size for count in counts],
            [part.numel() * size for part in parts],
            group=group.data,
            async_op=True,
        )
        pieces = dict(zip(order, landing.split(counts)))
        received = {i: pieces[i].reshape(shape) for i, shape in step.shapes.items()}
        return received, (work,), (sent, landing)

    def _take_step(self, rank: int, posted: Posted) -> dict[int, torch.Tensor]:
        group = self._group(posted.call)

        def describe(late: Sequence[int]) -> str:
            missing = late or [r for r in group.ranks if r != rank]
            return f"{posted.call.text()} for {ranks_text(missing)}"

        works, _ = posted.sent
        for work in works:
            self._job.finish(work, describe, group.processes)
        return posted.received

    # Messages -------------------------------------------------------------------------------

    def _send(self, route: MessageKey, meaning: Any, part: torch.Tensor) -> list[object]:
        if self._checks is not None:
            self._post_bytes(self._header(meaning, part), route, meaning)
        self._post_bytes(part, route, meaning)
        return []

    def _receive(
        self, route: MessageKey, label: str, expected: tuple[Transfer, torch.Tensor] | None
    ) -> tuple[Transfer, torch.Tensor]:
        if expected is None:
            raise ValueError("only tiles are received from single ranks")
        transfer, box = expected
        if self._checks is not None:
            header = self._header(transfer, box)
            sent = header.new_empty(header.shape)
            self._take_bytes(sent, route, transfer)
            if not bool((sent == header).all()):
                raise EngineError(
                    "DIST0611",
                    f"rank {route[2]} expects {transfer.text()} of {box.dtype}{list(box.shape)}, "
                    f"rank {route[1]} sent another message",
                    remedy=ONE_MEANING,
                )
        part = self._torch.empty(box.shape, dtype=box.dtype, device=box.device)
        self._take_bytes(part, route, transfer)
        return transfer, part

    def _post_bytes(self, part: torch.Tensor, route: MessageKey, transfer: Transfer) -> None:
        tag, source, destination = route
        pair = self.process(source), self.process(destination)
        channel = self._job.channel(*pair)
        work = self._dist.isend(_as_bytes(part), pair[1], group=channel, tag=tag)
        words = f"send of {transfer.text()} to rank {destination}"
        wait = partial(self._job.finish, self._job.message(work), lambda _: words, pair)
        self._sent.append((wait, part))

    def _take_bytes(self, part: torch.Tensor, route: MessageKey, transfer: Transfer) -> None:
        tag, source, destination = route
        pair = self.process(source), self.process(destination)
        channel = self._job.channel(*pair)
        work = self._dist.irecv(_as_bytes(part), pair[0], group=channel, tag=tag)
        words = f"receive of {transfer.text()} from rank {source}"
        self._job.finish(self._job.message(work), lambda _: words, pair)

    def _header(self, transfer: Transfer, part: torch.Tensor) -> torch.Tensor:
        """Return a digest of a message, which goes before it where calls are compared."""
        digest = digest_of(repr((transfer, str(part.dtype), tuple(part.shape))))
        return self._torch.tensor(list(digest), dtype=self._torch.uint8, device=part.device)

    # Steps of a run -------------------------------------------------------------------------

    def prepare(self, communication: Communication) -> None:
        """Make the process groups of the program."""
        self._job.make_groups(self.ranks, communication)

    def finish_call(self, location: str) -> None:
        """Wait for the sends of a call, and for the kernels of this process' GPU."""
        self.finish_sends()
        self._job.wait_for_device(location)

    def end(self) -> None:
        """Record in the job's store that this process has run to its end."""
        if self._job.failures is not None:
            self._job.failures.end()
        self.finish_sends()


def _as_bytes(x: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor as bytes, without a copy."""
    return x.reshape(-1).view(load_torch().uint8)

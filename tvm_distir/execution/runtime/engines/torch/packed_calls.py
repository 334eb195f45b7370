# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the packed functions ``tvm_distir.ccl.*`` on torch.distributed.

Their signatures are those of :mod:`tvm_distir.execution.runtime.collectives.ccl`. The tensors of
TVM are seen as torch tensors of the same memory (DLPack), on CPUs and on GPUs.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi

from tvm_distir.core.collectives import Collective, Transfer, counted_bytes
from tvm_distir.core.ir.operators import REDUCE_OPS
from tvm_distir.execution.runtime.collectives.ccl import (
    ARGS,
    PREFIX,
    parse_transfer,
    split_groups,
)
from tvm_distir.execution.runtime.collectives.fabric import ranks_text
from tvm_distir.execution.runtime.collectives.native_library import Executed
from tvm_distir.execution.runtime.program.async_names import DONE, START
from tvm_distir.support import EngineError

from .mover import Mover, PendingCollective, as_bytes
from .torch_job import RankGroup, TorchJob, load_torch

_DIGEST_BYTES = 16

_Begun = tuple[Collective, RankGroup, PendingCollective]
"""A collective that was started, and its group."""


def as_torch(x: Any) -> Any:
    """Return a torch tensor of the memory of a TVM tensor."""
    return load_torch().from_dlpack(x)


class PackedCalls:
    """The packed functions of a rank.

    Parameters
    ----------
    job : TorchJob
    ranks : sequence of int
        The device ids of the program; the i-th smallest is process i.
    rank : int
        The device id of this process.
    reduce : str
        ``"ordered"`` or ``"library"``.
    check : bool
        Whether the ranks of a group compare each call before its data moves.

    Attributes
    ----------
    executed : list of Executed
    received : list of (Transfer, int)
        The transfers that came to this rank, each with the bytes of an element.
    most_in_flight : int
        The most collectives that were started and not waited for at once.
    failure : BaseException or None
        What a function raised. TVM hands on its text only.
    """

    def __init__(
        self, job: TorchJob, ranks: Sequence[int], rank: int, reduce: str, check: bool
    ) -> None:
        self._job, self._rank, self._check = job, rank, check
        self._process = {r: i for i, r in enumerate(sorted(ranks))}
        self._mover = Mover(reduce)
        self._calls: dict[tuple[Any, ...], tuple[Collective, RankGroup]] = {}
        self._pending: dict[int, _Begun] = {}
        self._mail: dict[int, deque[Any]] = {}
        self._sent: list[tuple[Any, Any, str, tuple[int, int]]] = []
        self.executed: list[Executed] = []
        self.received: list[tuple[Transfer, int]] = []
        self.most_in_flight = 0
        self.failure: BaseException | None = None

    def register(self) -> None:
        """Register the functions with the FFI, in place of earlier ones."""
        bodies: dict[str, Callable[..., Any]] = {
            **{name: self._blocking(self._begin(name)) for name in ARGS if name not in _LOCAL},
            **{name: self._local(name) for name in _LOCAL},
            "exchange": self._blocking(self._begin_exchange),
            **{name + START: self._start(self._begin(name)) for name in ARGS if name not in _LOCAL},
            "exchange" + START: self._start(self._begin_exchange),
            DONE.removeprefix(PREFIX): self._done,
            "send": self._send,
            "recv": self._receive,
        }
        for name, body in bodies.items():
            tvm_ffi.register_global_func(PREFIX + name, self._guarded(body), override=True)

    def _guarded(self, body: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                return body(*args)
            except BaseException as err:
                self.failure = self.failure or err
                raise

        return call

    # Collectives ----------------------------------------------------------------------------

    def _group(self, call: Collective) -> RankGroup:
        return self._job.group([self._process[r] for r in call.group_of(self._rank)])

    def _decoded(self, name: str, args: Sequence[Any]) -> tuple[Collective, list[Any]]:
        """Return the collective of a call, and its operand and result."""
        names = ARGS[name]
        end = len(args) - len(names) - 1
        *operand, groups, size = args[:end]
        values = [int(v) for v in args[end:-1]]
        arguments = [(k, REDUCE_OPS[v] if k == "op" else v) for k, v in zip(names, values)]
        call = Collective(name, split_groups(groups, int(size)), tuple(arguments))
        return call, [as_torch(x) for x in (*operand, args[-1])]

    def _begin(self, name: str) -> Callable[..., _Begun]:
        def body(*args: Any) -> _Begun:
            call, (x, out) = self._decoded(name, args)
            group = self._group(call)
            self._compare(call, x, group)
            values = dict(call.args)
            if name == "collective_permute":
                values["position"] = group.ranks.index(self._rank)
                values["wrap"] = bool(values["wrap"])
            self.executed.append(Executed(name, call.groups, out.nbytes, 1))
            return call, group, getattr(self._mover, name)(group, x, out, **values)

        return body

    def _begin_exchange(self, x: Any, groups: Any, size: Any, *rest: Any) -> _Begun:
        *parts, out = rest
        shape, mesh, before, after = (tuple(int(n) for n in part) for part in parts)
        places = tuple(range(int(size)))
        args = (("shape", shape), ("src", (mesh, places, before)), ("dst", (mesh, places, after)))
        call = Collective("exchange", split_groups(groups, int(size)), args)
        group = self._group(call)
        operand, result = as_torch(x), as_torch(out)
        self._compare(call, operand, group)
        transfer = Transfer(0, shape, (mesh, places, before), (mesh, places, after))
        position = group.ranks.index(self._rank)
        self.executed.append(Executed(call.name, call.groups, counted_bytes(call, result), 1))
        return call, group, self._mover.exchange(group, operand, result, position, transfer)

    def _blocking(self, begin: Callable[..., _Begun]) -> Callable[..., None]:
        return lambda *args: self._finish(*begin(*args))

    def _start(self, begin: Callable[..., _Begun]) -> Callable[..., None]:
        def body(x: Any, *rest: Any) -> None:
            *args, copies, out = rest
            operand = tvm.runtime.from_dlpack(as_torch(x).clone()) if int(copies) else x
            begun = begin(operand, *args, out)
            address = as_torch(out).data_ptr()
            if address in self._pending or not as_torch(out).numel():
                self._finish(*begun)
                return
            self._pending[address] = begun
            self.most_in_flight = max(self.most_in_flight, len(self._pending))

        return body

    def _done(self, out: Any, *_: Any) -> None:
        begun = self._pending.pop(as_torch(out).data_ptr(), None)
        if begun is not None:
            self._finish(*begun)

    def _finish(
        self, call: Collective, group: RankGroup, pending: PendingCollective | None
    ) -> None:
        def describe(late: Sequence[int]) -> str:
            missing = late or [r for r in group.ranks if r != self._rank]
            return f"{call.text()} for {ranks_text(missing)}"

        while pending is not None:
            for work in pending.works:
                self._job.finish(work, describe, group.processes)
            pending = pending.complete()

    def _local(self, name: str) -> Callable[..., None]:
        def body(*args: Any) -> None:
            call, tensors = self._decoded(name, args)
            group, out = call.group_of(self._rank), tensors[-1]
            position, values = group.index(self._rank), dict(call.args)
            if name == "axis_index":
                out.fill_(position)
            elif name == "partial":
                self._mover.partial(tensors[0], out, position, values["op"])
            else:
                self._mover.local_slice(tensors[0], out, position, len(group), values["dim"])

        return body

    # Comparison of calls --------------------------------------------------------------------

    def _compare(self, call: Collective, x: Any, group: RankGroup) -> None:
        """Compare the calls of a group's ranks by a digest of each.

        Raises
        ------
        EngineError
            DIST0611 where they differ.
        """
        if not self._check:
            return
        kind = str(x.dtype).removeprefix("torch.")
        words = f"{call.text()} on {x.nbytes} bytes ({kind}{list(x.shape)})"
        words = f"{words} over {list(map(list, call.groups))}"
        digests = self._gathered_words(words, group)
        mine = group.ranks.index(self._rank)
        for rank, digest in zip(group.ranks, digests):
            if digest != digests[mine]:
                theirs = self._exchanged_words(words, digest, group)
                first, second = sorted([(self._rank, words), (rank, theirs)])
                raise EngineError(
                    "DIST0611",
                    f"rank {second[0]} called {second[1]} while rank {first[0]} called {first[1]}",
                    place=f"group {list(group.ranks)}",
                    remedy="Make all ranks of a group call the same collectives in the same order.",
                )

    def _gathered_words(self, words: str, group: RankGroup) -> list[bytes]:
        """Return a digest of each rank's words, in the order of the group."""
        torch = load_torch()
        digest = hashlib.sha256(words.encode()).digest()[:_DIGEST_BYTES]
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        rows = [torch.empty_like(mine) for _ in group.ranks]
        work = torch.distributed.all_gather(rows, mine, group=group.control, async_op=True)
        others = [r for r in group.ranks if r != self._rank]
        self._job.finish_on_host(
            work, lambda late: f"{words} for {ranks_text(late or others)}", group.processes
        )
        return [bytes(rows[i].tolist()) for i in group.positions]

    def _exchanged_words(self, words: str, digest: bytes, group: RankGroup) -> str:
        """Return the words of a digest, which each rank writes after a difference."""
        failures = self._job.failures
        if failures is None:
            return "another collective"
        words_digest = hashlib.sha256(words.encode()).digest()[:_DIGEST_BYTES]
        return failures.swap_texts(words_digest.hex(), words, digest.hex())

    # Messages -------------------------------------------------------------------------------

    def _send(self, x: Any, *args: Any) -> Any:
        transfer, operand = parse_transfer(args), as_torch(x)
        for tile in transfer.tiles():
            if tile.src != self._rank:
                continue
            part = operand[tile.src_slices()].clone(memory_format=load_torch().contiguous_format)
            if tile.dst == self._rank:
                self._mail.setdefault(transfer.tag, deque()).append(part)
                continue
            if self._check:
                self._post(self._header(transfer, part), tile.dst, transfer)
            self._post(part, tile.dst, transfer)
        return tvm.runtime.from_dlpack(operand.clone())

    def _header(self, transfer: Transfer, part: Any) -> Any:
        """Return a digest of a message, which goes before it where calls are compared."""
        torch = load_torch()
        text = repr((transfer, str(part.dtype), tuple(part.shape)))
        digest = hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]
        return torch.tensor(list(digest), dtype=torch.uint8, device=part.device)

    def _post(self, part: Any, rank: int, transfer: Transfer) -> None:
        source, peer = self._process[self._rank], self._process[rank]
        work = load_torch().distributed.isend(
            as_bytes(part), peer, group=self._job.channel(source, peer), tag=transfer.tag
        )
        words = f"send of {transfer.text()} to rank {rank}"
        self._sent.append((self._job.message(work), part, words, (source, peer)))

    def _receive(self, *args: Any) -> None:
        *parts, out = args
        transfer, result = parse_transfer(parts), as_torch(out)
        result.zero_()
        for tile in transfer.tiles():
            if tile.dst != self._rank:
                continue
            if tile.src == self._rank:
                result[tile.dst_slices()] = self._mail[transfer.tag].popleft()
                continue
            box = result.new_empty([b - a for a, b in tile.dst_bounds])
            self._await_header(transfer, tile.src, box)
            self._take(box, tile.src, transfer)
            result[tile.dst_slices()] = box
        self.received.append((transfer, result.element_size()))

    def _await_header(self, transfer: Transfer, rank: int, box: Any) -> None:
        if not self._check:
            return
        expected = self._header(transfer, box)
        header = expected.new_empty(expected.shape)
        self._take(header, rank, transfer)
        if not bool((header == expected).all()):
            raise EngineError(
                "DIST0611",
                f"rank {self._rank} expects {transfer.text()} of {box.dtype}{list(box.shape)}, "
                f"rank {rank} sent another message",
                remedy="Give every transfer a unique tag, and its sender and receiver the same "
                "shape.",
            )

    def _take(self, box: Any, rank: int, transfer: Transfer) -> None:
        source, peer = self._process[self._rank], self._process[rank]
        work = load_torch().distributed.irecv(
            as_bytes(box), peer, group=self._job.channel(peer, source), tag=transfer.tag
        )
        words = f"receive of {transfer.text()} from rank {rank}"
        self._job.finish(self._job.message(work), lambda _: words, (source, peer))

    def finish(self) -> None:
        """Wait for what was sent."""
        for work, _, words, pair in self._sent:
            self._job.finish(work, lambda _, w=words: w, pair)  # type: ignore[misc]
        self._sent.clear()


_LOCAL = ("local_slice", "partial", "axis_index")

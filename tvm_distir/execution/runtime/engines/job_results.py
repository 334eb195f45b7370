# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Wait for the end of all ranks, and collect the results on every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_distir.core.collectives import Transfer
from tvm_distir.execution.runtime.collectives.message_texts import tuples
from tvm_distir.execution.runtime.collectives.native_library import Executed
from tvm_distir.execution.runtime.engines.base import LocalResults
from tvm_distir.execution.runtime.engines.executed import count_executed
from tvm_distir.execution.runtime.program.counts import CollectiveCount
from tvm_distir.execution.runtime.program.io_layout import (
    Bounds,
    Entries,
    EntryFunction,
    Port,
    np_dtype,
)
from tvm_distir.execution.runtime.program.joining import check_local, different_bits, gather_outputs
from tvm_distir.execution.runtime.program.run_trace import CallSpan, RankTrace, write_run_trace
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.sharded import sharded_outputs
from tvm_distir.execution.runtime.program.tensors import Array

from .job_fabric import JobFabric


@dataclass(frozen=True)
class Ended:
    """The report of a process after its rank has run to its end.

    Its digests are those of the rank's part of each of its outputs.
    """

    rank: int | None
    digests: list[str]
    executed: list[Executed]
    received: list[tuple[Transfer, int]]

    def text(self) -> bytes:
        """Return the report as JSON."""
        return json.dumps(astuple(self)).encode()

    @staticmethod
    def read(text: bytes) -> Ended:
        """Return the report of :meth:`text`."""
        rank, digests, executed, received = json.loads(text)
        transfers = [(Transfer(*tuples(transfer)), size) for transfer, size in received]
        return Ended(rank, digests, [Executed(*tuples(call)) for call in executed], transfers)


def _without_padding(entry: EntryFunction, port: Port, rank: int, part: Array) -> Array:
    """Return the part of a local array that is not padding."""
    return part[tuple(slice(0, b - a) for a, b in entry.bounds(port, rank))]


def wait_for_end(
    member: JobFabric,
    entries: Entries,
    results: Mapping[int, Sequence[Array]],
    outputs: str,
    counted: bool = False,
) -> list[Ended]:
    """Wait until all ranks have ended, and return their reports.

    Those of steps have no counts: a job that runs step by step reports them to nobody.
    """
    digests: list[str] = []
    for entry in entries:
        if outputs == "sharded" or member.rank is None or member.rank not in entry.ranks:
            continue
        for port, part in zip(entry.outputs, results[member.rank]):
            check_local(part, port, entry, member.rank, entry.output_location(port))
            content = np.ascontiguousarray(_without_padding(entry, port, member.rank, part))
            digests.append(hashlib.sha256(content.tobytes()).hexdigest())
    rank = member.rank
    ended = Ended(
        rank,
        digests,
        member.executed(rank) if counted and rank is not None else [],
        member.received(rank) if counted and rank is not None else [],
    )
    ranks = member.ranks
    texts = member.exchange_texts(
        ended.text(),
        lambda late: f"the end: {', '.join(f'rank {ranks[p]} did not end' for p in late)}",
    )
    return [Ended.read(text) for text in texts]


def finish_run(
    member: JobFabric, program: Runnable, results: Mapping[int, list[Array]], outputs: str
) -> tuple[list[Any], tuple[CollectiveCount, ...]]:
    """Wait until all ranks have ended; returns the outputs of the run and what it executed.

    Parameters
    ----------
    member : JobFabric
    program : Runnable
    results : mapping of int to list of array
        The results of this process' rank.
    outputs : str
        ``"whole"`` or ``"sharded"``.
    """
    entries = program.entries
    ended = wait_for_end(member, entries, results, outputs, counted=True)
    of = {e.rank: e for e in ended}
    executed = count_executed(
        program.axes, entries, lambda rank: of[rank].executed, lambda rank: of[rank].received
    )
    if outputs == "sharded":
        return list(sharded_outputs(entries, results)), executed
    return gather_outputs(entries, collect(member, entries, results, ended)), executed


def write_job_trace(member: JobFabric, path: Path, trace: RankTrace) -> None:
    """Gather the calls of all ranks, and write their trace on process 0."""
    text = json.dumps([member.rank, trace.spans]).encode()
    texts = member.exchange_texts(text, lambda late: f"the trace of processes {late}")
    if member.rank == member.ranks[0]:
        ranks = dict(json.loads(text) for text in texts)
        write_run_trace(
            path, {r: [CallSpan(*s) for s in spans] for r, spans in ranks.items() if r is not None}
        )


def collect(
    member: JobFabric, entries: Entries, results: Mapping[int, list[Array]], ended: Sequence[Ended]
) -> LocalResults:
    """Return the local results of all ranks on every process; of replicas, one travels.

    Raises
    ------
    EngineError
        DIST0604 when replicas differ in any bit.
    """
    digests = {e.rank: e.digests for e in ended if e.rank is not None}
    arrays: dict[int, list[Array]] = {r: [] for e in entries for r in e.ranks}
    for entry in entries:
        for k, port in enumerate(entry.outputs):
            holder: dict[Bounds, tuple[int, Array]] = {}
            for rank in entry.ranks:
                bounds = entry.bounds(port, rank)
                if bounds not in holder:
                    mine = results[rank][k] if rank == member.rank else None
                    holder[bounds] = (
                        rank,
                        member.share(rank, mine, entry.local_shape(port), np_dtype(port.dtype)),
                    )
                first, array = holder[bounds]
                if digests[rank][k] != digests[first][k]:
                    raise different_bits(first, rank, port, entry.output_location(port))
                arrays[rank].append(array)
    return arrays

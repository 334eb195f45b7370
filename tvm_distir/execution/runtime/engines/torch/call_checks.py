# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare the calls of the ranks of a group before their data moves."""

from __future__ import annotations

import hashlib

from tvm_distir.execution.runtime.collectives.fabric import ranks_text, unlike_calls

from .process_groups import RankGroup
from .torch_job import TorchJob

_DIGEST_BYTES = 16


def digest_of(text: str) -> bytes:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]


class CallChecks:
    """The comparison of the calls of a group's ranks by a digest of each.

    Parameters
    ----------
    job : TorchJob
    """

    def __init__(self, job: TorchJob) -> None:
        self._job = job

    def compare(self, rank: int, words: str, group: RankGroup) -> None:
        """Compare a call, in words, with those of the other ranks.

        Raises
        ------
        EngineError
            DIST0611 where they differ.
        """
        digests = self._gathered(rank, words, group)
        mine = digests[group.ranks.index(rank)]
        for other, digest in zip(group.ranks, digests):
            if digest != mine:
                first, second = sorted([(rank, words), (other, self._exchanged(words, digest))])
                raise unlike_calls(second, first, group.ranks)

    def _gathered(self, rank: int, words: str, group: RankGroup) -> list[bytes]:
        """Return a digest of each rank's words, in the order of the group."""
        torch = self._job.torch
        mine = torch.frombuffer(bytearray(digest_of(words)), dtype=torch.uint8)
        rows = [torch.empty_like(mine) for _ in group.ranks]
        work = torch.distributed.all_gather(rows, mine, group=group.control, async_op=True)
        others = [r for r in group.ranks if r != rank]
        self._job.finish_on_host(
            work, lambda late: f"{words} for {ranks_text(late or others)}", group.processes
        )
        return [bytes(rows[i].tolist()) for i in group.positions]

    def _exchanged(self, words: str, digest: bytes) -> str:
        """Return the words of a digest, which each rank writes after a difference."""
        failures = self._job.failures
        if failures is None:
            return "another collective"
        return failures.swap_texts(digest_of(words).hex(), words, digest.hex())

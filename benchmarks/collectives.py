# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Counts the collectives of a lowered module, and what they send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from peers import Peer
from tvm import ir

import tvm_distir as td


@dataclass(frozen=True, order=True)
class Collective:
    """One collective of one device: kind, devices per group, bytes of its result."""

    kind: str
    group_size: int
    result_bytes: int

    @property
    def wire_bytes(self) -> float:
        """What a device sends by the ring algorithm (Thakur et al. 2005, section 4)."""
        n, size = self.group_size, self.result_bytes
        if self.kind == "all_reduce":
            return 2 * (n - 1) / n * size
        if self.kind == "reduce_scatter":
            return float((n - 1) * size)
        if self.kind in ("all_gather", "all_to_all"):
            return (n - 1) / n * size
        return float(size)


@dataclass(frozen=True)
class Traffic:
    """All collectives that one device takes part in, with how often."""

    counts: Counter[Collective]

    @staticmethod
    def of(collectives: Iterable[Collective]) -> Traffic:
        """Count collectives."""
        return Traffic(Counter(collectives))

    @property
    def result_bytes(self) -> int:
        """Bytes of all results."""
        return sum(each.result_bytes * times for each, times in self.counts.items())

    @property
    def wire_bytes(self) -> int:
        """Bytes that a device sends."""
        return round(sum(each.wire_bytes * times for each, times in self.counts.items()))

    def by_kind(self) -> str:
        """Counts per kind and group size, as ``4 all_gather/4, 4 reduce_scatter/4``."""
        kinds: Counter[tuple[str, int]] = Counter()
        for each, times in self.counts.items():
            kinds[each.kind, each.group_size] += times
        words = [f"{kinds[kind, size]} {kind}/{size}" for kind, size in sorted(kinds)]
        return ", ".join(words) or "none"


def of_peer(peer: Peer, do: str, **question: Any) -> Traffic:
    """Count the collectives of a peer's answer."""
    answer = peer.ask(do, **question)
    return Traffic.of(Collective(*each) for each in answer["collectives"])


def of_module(mod: ir.IRModule) -> Traffic:
    """Count the collectives of a level-5 module of one mesh, those of calls at every call."""
    program = td.export(mod)
    counts: Counter[Collective] = Counter()
    waiting = [entry.function for entry in program.entries]
    while waiting:
        for op in program.functions[waiting.pop()].ops:
            if op.kind == "call":
                waiting.append(op.callee)
            elif op.kind == "collective":
                counts[Collective(op.collective, op.group_size, op.payload_bytes)] += 1
    return Traffic(counts)

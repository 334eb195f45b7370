# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bytes that a device sends in a change of placement: ours, torch DTensor's, XLA:CPU's.

All pairs of placements (partial sums included as sources) of a float32 matrix on meshes of 2 to 8
devices, in order. Wire bytes by the ring formulae from the results of the collectives; of an
exchange, the most bytes that one device receives. Where several axes share an uneven dim, ours and
DTensor cut the blocks of one axis again, while XLA's are equal parts of the whole: the same
placement is another layout there, and counted apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from collectives import Collective, of_peer
from measure import parser, print_setting, table
from peers import JaxPeer, Peer, TorchPeer

from tvm_distir.core.ir.placement import P, R, placement_text
from tvm_distir.core.redistribution.planner import Planner
from tvm_distir.core.redistribution.transfer import step_transfer

MESHES = ((2,), (4,), (8,), (2, 2), (4, 2), (2, 2, 2))
EVERY: dict[str, dict[tuple[int, ...], int]] = {"torch DTensor": {}, "XLA:CPU": {(2, 2, 2): 11}}
"""Peer and mesh: every how many-th pair is measured, unless all are."""
SHAPES = {"even": (256, 512), "uneven": (250, 509), "uneven, shared": (250, 509)}
"""*shared*: pairs in which several axes share a dim; *uneven*: the others."""

Labels = tuple[int, ...]
Case = tuple[Sequence[int], Sequence[int], Labels, Labels]


@dataclass
class Score:
    """What a peer sends in all cases of a mesh, and where it sends less than ours."""

    cases: int = 0
    ours: int = 0
    theirs: int = 0
    more: int = 0
    worse: list[str] = field(default_factory=list)

    def add(self, ours: int, theirs: int, case: Case) -> None:
        """Count a case."""
        self.cases += 1
        self.ours, self.theirs = self.ours + ours, self.theirs + theirs
        self.more += theirs > ours
        if ours <= theirs:
            return
        shape, mesh, before, after = case
        self.worse.append(
            f'{shape} on {mesh}: "{placement_text(before)}" -> "{placement_text(after)}": '
            f"ours {ours:,}, theirs {theirs:,}"
        )


def pairs(mesh: tuple[int, ...]) -> Iterator[tuple[int, Labels, Labels]]:
    """Numbered pairs of different placements of a matrix, complete at the end."""
    sources = itertools.product([P, R, 0, 1], repeat=len(mesh))
    for number, (before, after) in enumerate(
        itertools.product(sources, itertools.product([R, 0, 1], repeat=len(mesh)))
    ):
        if before != after:
            yield number, before, after


def shares(labels: Labels) -> bool:
    """Whether several axes shard one dim."""
    dims = [x for x in labels if x >= 0]
    return len(set(dims)) < len(dims)


def our_bytes(
    planner: Planner, shape: Sequence[int], mesh: Sequence[int], before: Labels, after: Labels
) -> int:
    """Wire bytes of our plan."""
    total, at = 0.0, before
    for step in planner.plan(shape, before, after, mesh).steps:
        if step.kind not in ("local_slice", "partial"):
            wire = step_transfer(shape, at, step, mesh, "float32")
            group = math.prod(mesh[axis] for axis in wire.axes)
            total += Collective(wire.kind, group, wire.payload_bytes).wire_bytes
        at = step.after
    return round(total)


def measured(planner: Planner, title: str, mesh: tuple[int, ...], name: str, peer: Peer) -> Score:
    """Score of a peer on a mesh."""
    score, shape = Score(), SHAPES[title]
    every = EVERY[name].get(mesh, 1)
    for number, before, after in pairs(mesh):
        shared = shares(before) or shares(after)
        if number % every or (title != "even" and shared != (title == "uneven, shared")):
            continue
        mine = our_bytes(planner, shape, mesh, before, after)
        labels = {"before": list(before), "after": list(after)}
        requests = {"shape": list(shape), "mesh": list(mesh), **labels}
        theirs = of_peer(peer, "reshard", **requests).wire_bytes
        score.add(mine, theirs, (shape, mesh, before, after))
    return score


HEADER = ["mesh, peer", "cases", "ours", "theirs", "theirs / ours", "theirs more", "ours more"]


def row(title: str, score: Score) -> list[object]:
    """Row of the table."""
    ratio = score.theirs / score.ours if score.ours else 1.0
    sums = [f"{score.ours:,}", f"{score.theirs:,}", f"{ratio:.2f}"]
    return [title, score.cases, *sums, score.more, len(score.worse)]


def main() -> None:
    """Print a table per kind of sizes."""
    options = parser(__doc__, jax=True)
    options.add_argument("--torch-python", required=True, metavar="PATH")
    options.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    arguments = options.parse_args()
    planner, lost = Planner(), []
    with JaxPeer(arguments.jax_python) as jax, TorchPeer(arguments.torch_python) as torch:
        print_setting(**jax.versions, **torch.versions)
        peers: dict[str, Peer] = {"torch DTensor": torch, "XLA:CPU": jax}
        for title in arguments.sizes:
            rows = []
            for mesh in MESHES:
                for name, peer in peers.items():
                    score = measured(planner, title, mesh, name, peer)
                    if score.cases:
                        rows.append(row(f"{mesh}, {name}", score))
                    lost += [f"{name}, {title}, {line}" for line in score.worse]
            print(f"Wire bytes per device, {title}: {SHAPES[title]}\n")
            table(HEADER, rows)
    for line in lost:
        print(f"ours more: {line}")


if __name__ == "__main__":
    main()

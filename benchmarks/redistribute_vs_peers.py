# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bytes that a device sends in a change of placement: ours, torch DTensor's, XLA:CPU's.

All pairs of placements (partial sums included as sources) of a float32 matrix on meshes of 2 to 8
devices, in order. Wire bytes by the ring formulae from the results of the collectives; of an
exchange, the most bytes that one device receives. XLA:CPU takes dims that divide only. Where
several axes share an uneven dim, DTensor cuts the blocks of one axis again while ours are equal
parts of the whole: the same placement is another layout there, and counted apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from collectives import Collective, Traffic
from measure import parser, print_setting, table
from peers import JaxPeer, Peer, TorchPeer

from tvm_distir.ir import P, R, placement_text
from tvm_distir.transform.legalize import Planner
from tvm_distir.transform.legalize.planner import step_payload_bytes

MESHES: dict[tuple[int, ...], int] = {
    (2,): 1, (4,): 1, (8,): 1, (2, 2): 1, (4, 2): 1, (2, 2, 2): 11,
}  # fmt: skip
"""Mesh: every how many-th pair is measured."""
SHAPES = {"even": (256, 512), "uneven": (250, 509), "uneven, shared": (250, 509)}
"""*shared*: pairs in which several axes share a dim; *uneven*: the others."""

Labels = tuple[int, ...]


@dataclass
class Score:
    """What a peer sends in all cases of a mesh, and where it sends less than ours."""

    cases: int = 0
    ours: int = 0
    theirs: int = 0
    more: int = 0
    worse: list[str] = field(default_factory=list)

    def add(self, ours: int, theirs: int, what: str) -> None:
        """Count a case."""
        self.cases += 1
        self.ours, self.theirs = self.ours + ours, self.theirs + theirs
        self.more += theirs > ours
        if ours > theirs:
            self.worse.append(f"{what}: ours {ours:,}, theirs {theirs:,}")


def pairs(mesh: tuple[int, ...], every: int) -> Iterator[tuple[Labels, Labels]]:
    """Pairs of different placements of a matrix, complete at the end."""
    sources = itertools.product([P, R, 0, 1], repeat=len(mesh))
    for number, (before, after) in enumerate(
        itertools.product(sources, itertools.product([R, 0, 1], repeat=len(mesh)))
    ):
        if before != after and number % every == 0:
            yield before, after


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
        group = 1
        for axis in step.axes:
            group *= mesh[axis]
        if step.kind not in ("local_slice", "partial"):
            payload = step_payload_bytes(shape, at, step, mesh, "float32")
            total += Collective(step.kind, group, payload).wire_bytes
        at = step.after
    return round(total)


def peer_bytes(peer: Peer, **question: object) -> int:
    """Wire bytes of a peer."""
    answer = peer.ask("reshard", **question)
    return Traffic.of(Collective(*one) for one in answer["collectives"]).wire_bytes


def main() -> None:
    """Print a table per kind of sizes."""
    options = parser(__doc__, jax=True)
    options.add_argument("--torch-python", required=True, metavar="PATH")
    options.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    given = options.parse_args()
    planner, lost = Planner(), []
    with JaxPeer(given.jax_python) as jax, TorchPeer(given.torch_python) as torch:
        print_setting(**jax.versions, **torch.versions)
        for title, shape in ((t, SHAPES[t]) for t in given.sizes):
            peers: dict[str, Peer] = {"torch DTensor": torch}
            if title == "even":
                peers["XLA:CPU"] = jax
            rows = []
            for mesh, every in MESHES.items():
                scores = {name: Score() for name in peers}
                for before, after in pairs(mesh, every):
                    shared = shares(before) or shares(after)
                    if title != "even" and shared != (title == "uneven, shared"):
                        continue
                    mine = our_bytes(planner, shape, mesh, before, after)
                    what = f'{shape} on {mesh}: "{placement_text(before)}" -> '
                    what += f'"{placement_text(after)}"'
                    for name, peer in peers.items():
                        labels = {"before": list(before), "after": list(after)}
                        theirs = peer_bytes(peer, shape=list(shape), mesh=list(mesh), **labels)
                        scores[name].add(mine, theirs, f"{name}, {what}")
                for name, score in scores.items():
                    if not score.cases:
                        continue
                    ratio = score.theirs / score.ours if score.ours else 1.0
                    rows.append(
                        [
                            f"{mesh}, {name}", score.cases, f"{score.ours:,}",
                            f"{score.theirs:,}", f"{ratio:.2f}", score.more, len(score.worse),
                        ]
                    )  # fmt: skip
                    lost += score.worse
            header = ["mesh, peer", "cases", "ours", "theirs", "theirs / ours"]
            print(f"Wire bytes per device, {title}: {shape}\n")
            table([*header, "theirs more", "ours more"], rows)
    for line in lost:
        print(f"ours more: {line}")


if __name__ == "__main__":
    main()

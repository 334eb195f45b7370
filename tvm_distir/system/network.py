# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Ring formulae of the collectives, and how a group lies on the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import SimulationError, nearest

COLLECTIVE_KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "exchange",
    "send",
    "recv",
)


def check_kind(kind: str) -> None:
    """Refuse a collective that has no formula."""
    if kind not in COLLECTIVE_KINDS:
        raise SimulationError(
            "DIST0712",
            f"there is no collective {kind!r}",
            place="collective",
            remedy=nearest(str(kind), COLLECTIVE_KINDS),
        )


def wire_bytes(kind: str, result_bytes: int, ranks: int) -> int:
    """Bytes that each rank sends, by the ring algorithm.

    Parameters
    ----------
    kind : str
        One of :data:`COLLECTIVE_KINDS`.
    result_bytes : int
        Size of one rank's result ``b``.
    ranks : int
        Size of the group ``n``.

    Returns
    -------
    sent : int
        all-reduce ``2 (n-1)/n b``; all-gather ``(n-1)/n b``; reduce-scatter ``(n-1) b`` (its
        operand is ``n b``); all-to-all ``(n-1)/n b``; permutation and transfer ``b``; exchange
        ``b``, here the most bytes that one rank receives. A fraction of a byte is rounded up.
        Nothing in a group of one, transfers apart.

    Notes
    -----
    Rabenseifner, *Optimization of Collective Reduction Operations*, ICCS 2004; the same as the
    bus bandwidth of nccl-tests.
    """
    check_kind(kind)
    if kind in ("send", "recv"):
        return result_bytes
    if ranks <= 1:
        return 0
    if kind == "reduce_scatter":
        return (ranks - 1) * result_bytes
    if kind in ("collective_permute", "exchange"):
        return result_bytes
    times = 2 if kind == "all_reduce" else 1
    return -(-times * (ranks - 1) * result_bytes // ranks)


def ring_steps(kind: str, ranks: int) -> int:
    """Messages one after the other: ``2 (n-1)`` for all-reduce, 1 for permutation and transfer."""
    check_kind(kind)
    if kind in ("send", "recv"):
        return 1
    if ranks <= 1:
        return 0
    if kind == "collective_permute":
        return 1
    return (2 if kind == "all_reduce" else 1) * (ranks - 1)


@dataclass(frozen=True)
class Spread:
    """How a group lies on the nodes.

    Attributes
    ----------
    ranks : int
        Size of the group.
    nodes : int
        Nodes it touches.
    per_node : int
        Members on the fullest of them.
    """

    ranks: int
    nodes: int
    per_node: int


def spread(ranks: Sequence[int], devices_per_node: int) -> Spread:
    """How a group of device ids lies on nodes of consecutive devices."""
    members: dict[int, int] = {}
    for rank in ranks:
        node = rank // devices_per_node
        members[node] = members.get(node, 0) + 1
    return Spread(len(ranks), len(members), max(members.values(), default=0))


def nic_sharing(groups: Sequence[Sequence[int]], devices_per_node: int) -> int:
    """How many of some groups leave the same node at most: they share its network adapters.

    Groups that run the same collective at the same time are those along one mesh axis.
    """
    leaving: dict[int, int] = {}
    for group in groups:
        nodes = sorted({rank // devices_per_node for rank in group})
        if len(nodes) > 1:
            for node in nodes:
                leaving[node] = leaving.get(node, 0) + 1
    return max(leaving.values(), default=1)

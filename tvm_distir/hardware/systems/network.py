# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the messages of collectives on a ring, and distribute device groups over nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.core.collectives import RING_PASSES, check_kind
from tvm_distir.core.ir.operators import TRANSFERS

from .routing import Routes


def ring_steps(kind: str, ranks: int) -> int:
    """Return the number of sequential messages: ``2 (n-1)`` for all-reduce, 1 for permutation."""
    check_kind(kind)
    if kind in TRANSFERS:
        return 1
    if ranks <= 1:
        return 0
    if kind == "collective_permute":
        return 1
    return RING_PASSES.get(kind, 1) * (ranks - 1)


@dataclass(frozen=True)
class GroupTopology:
    """The distribution of a group over the nodes.

    Attributes
    ----------
    ranks : int
        Size of the group.
    nodes : int
        Nodes it touches.
    per_node : int
        Members on the fullest of them.
    outer : tuple of (int, int)
        The domains that it touches of each outer tier, and its members in the fullest of them.
    routes : Routes, optional
        Its paths through a graph, beside those of the groups that communicate at once.
    """

    ranks: int
    nodes: int
    per_node: int
    outer: tuple[tuple[int, int], ...] = ()
    routes: Routes | None = None


def spread(
    ranks: Sequence[int], devices_per_node: int, domains: Sequence[int] = ()
) -> GroupTopology:
    """Return how a group of device ids is distributed over nodes of consecutive devices.

    ``domains``: the sizes of the domains that outer tiers connect.
    """
    outer = tuple(_touched(ranks, size) for size in domains)
    return GroupTopology(len(ranks), *_touched(ranks, devices_per_node), outer)


def _touched(ranks: Sequence[int], size: int) -> tuple[int, int]:
    members = Counter(rank // size for rank in ranks)
    return len(members), max(members.values(), default=0)


@dataclass(frozen=True, eq=False)
class GroupLayout:
    """The distribution of groups that run a collective concurrently over the nodes.

    Attributes
    ----------
    spreads : tuple of GroupTopology
        The topology of each group.
    sharing : int
        The maximum number of groups that leave the same node: they share its network adapters.
    kinds : frozenset of GroupTopology
        The different ones: groups that lie alike take equally long.
    """

    spreads: tuple[GroupTopology, ...]
    sharing: int
    kinds: frozenset[GroupTopology]


_FEW = 16
"""Groups up to which arrays are slower."""

Groups = Sequence[Sequence[int]] | npt.NDArray[np.int64]
"""The ranks of groups, one row each."""


def layout_of(groups: Groups, devices_per_node: int, domains: Sequence[int] = ()) -> GroupLayout:
    """Return how groups of device ids are distributed over nodes of consecutive devices.

    ``domains`` as in :func:`spread`.
    """
    if isinstance(groups, np.ndarray):
        if len(groups) > _FEW and not domains:
            return _layout_of_equal(groups // devices_per_node)
        return layout_of(groups.tolist(), devices_per_node, domains)
    equal = len(groups) > _FEW and not domains and len({len(group) for group in groups}) == 1
    if equal and len(groups[0]):
        return _layout_of_equal(np.array(groups, np.int64) // devices_per_node)
    spreads = tuple(spread(group, devices_per_node, domains) for group in groups)
    return GroupLayout(spreads, nic_sharing(groups, devices_per_node), frozenset(spreads))


def _layout_of_equal(nodes: npt.NDArray[np.int64]) -> GroupLayout:
    """Return the distribution of groups of equal size from the nodes (groups, size)."""
    groups, size = nodes.shape
    nodes = np.sort(nodes, axis=1)
    begins = np.ones((groups, size), bool)
    begins[:, 1:] = nodes[:, 1:] != nodes[:, :-1]
    first = np.flatnonzero(begins)  # of each node of each group
    members = np.diff(np.append(first, groups * size))
    touched = begins.sum(axis=1)
    start = np.cumsum(touched) - touched
    fullest = np.maximum.reduceat(members, start)
    pairs, kind = np.unique(np.stack((touched, fullest), axis=1), axis=0, return_inverse=True)
    known = [GroupTopology(size, *pair) for pair in pairs.tolist()]
    leaving = nodes.ravel()[first][np.repeat(touched > 1, touched)]
    _, shared = np.unique(leaving, return_counts=True)
    spreads = tuple([known[k] for k in kind.ravel().tolist()])
    return GroupLayout(spreads, int(shared.max(initial=1)), frozenset(known))


def nic_sharing(groups: Sequence[Sequence[int]], devices_per_node: int) -> int:
    """Return the maximum number of groups that leave the same node and share its adapters.

    Groups that run the same collective at the same time are those along a mesh axis.
    """
    leaving: dict[int, int] = {}
    for group in groups:
        nodes = {rank // devices_per_node for rank in group}
        if len(nodes) > 1:
            for node in nodes:
                leaving[node] = leaving.get(node, 0) + 1
    return max(leaving.values(), default=1)


def pair_up(source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of devices of two meshes, the shorter side repeated in blocks.

    A device that belongs to both is paired with the next of the others.
    """
    count = max(len(source), len(target))
    pairs: list[tuple[int, int]] = []
    for i in range(count):
        sender, start = source[i * len(source) // count], i * len(target) // count
        turned = (target[(start + k) % len(target)] for k in range(len(target)))
        other = next((device for device in turned if device != sender), None)
        if other is not None:
            pairs.append((sender, other))
    return pairs

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute collectives by ring formulas, and distribute device groups over nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir.names import COLLECTIVES, TRANSFERS
from tvm_distir.support import SimulationError, nearest

_PASSES: Mapping[str, int] = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
}
"""Collectives on a ring of n devices: how often the n blocks of a value go around, of which every
device passes all but one on. Data of the others goes straight to where it belongs."""


_KNOWN = (*COLLECTIVES, *TRANSFERS)


def check_kind(kind: str) -> None:
    """Refuse a collective that has no formula."""
    if kind not in _KNOWN:
        raise SimulationError(
            "DIST0712",
            f"there is no collective {kind!r}",
            place="collective",
            remedy=nearest(str(kind), _KNOWN),
        )


def wire_bytes(kind: str, result_bytes: int, ranks: int) -> int:
    """Return the bytes that each rank sends, by the ring algorithm.

    Parameters
    ----------
    kind : str
        The kind, from :data:`~.names.COLLECTIVES` or :data:`~.names.TRANSFERS`.
    result_bytes : int
        Size of a rank's result ``b``.
    ranks : int
        Size of the group ``n``.

    Returns
    -------
    sent : int
        The bytes that each rank sends: all-reduce ``2 (n-1)/n b``; all-gather ``(n-1)/n b``;
        reduce-scatter ``(n-1) b`` (its operand is ``n b``); all-to-all ``(n-1)/n b``; permutation
        and transfer ``b``; exchange ``b``, here the most bytes that a rank receives. A fraction of
        a byte is rounded up. A group of a single rank sends nothing, except for transfers.

    Notes
    -----
    Rabenseifner, *Optimization of Collective Reduction Operations*, ICCS 2004; the same as the
    bus bandwidth of nccl-tests.
    """
    check_kind(kind)
    if kind in TRANSFERS:
        return result_bytes
    if ranks <= 1:
        return 0
    if kind not in _PASSES:
        return result_bytes
    blocks = 1 if kind == "reduce_scatter" else ranks  # that the result has
    return -(-_PASSES[kind] * (ranks - 1) * result_bytes // blocks)


def wire_share(kind: str, whole: int, ranks: int) -> int:
    """Return the bytes that each rank sends in a conversion along a mesh axis.

    The formulas of :func:`wire_bytes`, asked before the result is known: in the unit of ``whole``,
    whatever it is (bytes, or weights of them), each pass around the ring rounded down.

    Parameters
    ----------
    kind : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``.
    whole : int
        Size of the value whole along the axis: the result of an all-reduce or all-gather, ``n``
        results of the others.
    ranks : int
        Devices ``n`` along the axis.

    Returns
    -------
    sent : int
        all-reduce ``2 u``, all-gather and reduce-scatter ``u``, all-to-all ``u / n`` with
        ``u = whole (n-1) / n``.
    """
    check_kind(kind)
    sent = _PASSES[kind] * (whole * (ranks - 1) // ranks)
    return sent // ranks if kind == "all_to_all" else sent


def ring_steps(kind: str, ranks: int) -> int:
    """Return the number of sequential messages: ``2 (n-1)`` for all-reduce, 1 for permutation."""
    check_kind(kind)
    if kind in TRANSFERS:
        return 1
    if ranks <= 1:
        return 0
    if kind == "collective_permute":
        return 1
    return _PASSES.get(kind, 1) * (ranks - 1)


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
    """

    ranks: int
    nodes: int
    per_node: int
    outer: tuple[tuple[int, int], ...] = ()


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


def layout_of(
    groups: Sequence[Sequence[int]] | npt.NDArray[np.int64],
    devices_per_node: int,
    domains: Sequence[int] = (),
) -> GroupLayout:
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

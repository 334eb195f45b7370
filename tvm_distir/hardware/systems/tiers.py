# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the times of collectives by the algorithms that are fastest, over any number of tiers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .collective_algorithms import ALL_TO_ALL, RINGED, SUM, Quantity, algorithm_named
from .hardware import Curve, IntraNode
from .network import GroupTopology

_ALGORITHM = functools.lru_cache(maxsize=64)(algorithm_named)


class Crossing(NamedTuple):
    """A tier that a group crosses.

    Attributes
    ----------
    domains, members : int
        The domains that the group touches, which the tier connects, and its members in the
        fullest.
    bandwidth : float
        Bytes per second that the group sends out of a domain.
    hop_us : float
        The latency of a message over the tier.
    tree : float, optional
        Bytes per second of trees; None: the bandwidth.
    exchange : float, optional
        Seconds per byte of a result of an all-to-all; None: those of what leaves a domain.
    """

    domains: int
    members: int
    bandwidth: float
    hop_us: float
    tree: float | None = None
    exchange: float | None = None


def curve_time_s(near: IntraNode, kind: str, payload_bytes: Quantity, ranks: int) -> Any:
    """Return the seconds of a collective inside a node.

    Parameters
    ----------
    near : IntraNode
        A node with curves.
    kind : str
    payload_bytes : int, or int64 array
        The payload. An array gives an array of seconds, equal to those of its numbers each.
    ranks : int
    """
    if kind not in (*RINGED, ALL_TO_ALL):  # a device sends the payload to another
        return least(*(_message_s(curve, payload_bytes) for curve in of_kind(near, ALL_TO_ALL)))
    total = payload_bytes * ranks if kind == "reduce_scatter" else payload_bytes
    return least(*(_collective_s(curve, total, ranks) for curve in of_kind(near, kind)))


def of_kind(near: IntraNode, kind: str) -> list[Curve]:
    """Return the curves of a collective."""
    return [curve for curve in near.curves if curve.kind == kind]


def _collective_s(curve: Curve, total_bytes: Quantity, ranks: int) -> Quantity:
    algorithm = _ALGORITHM(curve.algorithm)
    alpha_us = curve.setup_us + algorithm.steps(curve.kind, ranks) * curve.hop_us
    sent = algorithm.sent_bytes(curve.kind, total_bytes, ranks, curve.copied)
    return 1e-6 * alpha_us + sent / (curve.bandwidth_GBps * 1e9)


def _message_s(curve: Curve, payload_bytes: Quantity) -> Quantity:
    alpha_us = curve.setup_us + curve.hop_us
    return 1e-6 * alpha_us + payload_bytes / (curve.bandwidth_GBps * 1e9) * (1.0 + curve.copied)


def tiered_time_s(
    near: IntraNode,
    kind: str,
    payload_bytes: Quantity,
    where: GroupTopology,
    crossings: Sequence[Crossing],
) -> Any:
    """Return the seconds of a collective over several nodes.

    Parameters
    ----------
    near : IntraNode
        A node with curves.
    kind : str
    payload_bytes : int, or int64 array
        The payload, as in :func:`curve_time_s`.
    where : GroupTopology
    crossings : sequence of Crossing
        The tiers that the group crosses, from the inside to the outside.

    Notes
    -----
    A *ring* passes every node, with a hop per crossing, at the pace of its slowest link. A sum may
    also take a *tree*, two hops per doubling of the domains, which sends the whole value up and
    down, or run *hierarchically*: the sum of each node by the fastest algorithm inside, and a ring
    or tree over nodes of each share. Each keeps the launch and the steps inside a node of the
    curve that it takes there. In an all-to-all every device sends to each other device, and
    ``m (n - m) / n`` of the result leave a domain with m of the n members. A group takes no less
    time than its part inside a node.
    """
    slowest = min(crossing.bandwidth for crossing in crossings)
    tree = min(crossing.tree or crossing.bandwidth for crossing in crossings)
    inside_s = curve_time_s(near, kind, payload_bytes, where.per_node)
    if kind not in RINGED:
        outermost_us = crossings[-1].hop_us
        curves = of_kind(near, ALL_TO_ALL)
        if kind != ALL_TO_ALL:
            slowest_share = min(crossing.bandwidth / crossing.members for crossing in crossings)
            times = [_message_s(curve, payload_bytes) for curve in curves]
            return least(*times) + 1e-6 * outermost_us + payload_bytes / slowest_share
        share = max(
            crossing.members * (where.ranks - crossing.members) / where.ranks / crossing.bandwidth
            if crossing.exchange is None
            else crossing.exchange
            for crossing in crossings
        )
        issue_us = min(curve.setup_us + curve.hop_us * (where.ranks - 1) for curve in curves)
        return most(inside_s, 1e-6 * (issue_us + outermost_us) + payload_bytes * share)
    rounds = 2 if kind == SUM else 1
    total = payload_bytes * where.ranks if kind == "reduce_scatter" else payload_bytes
    hops_us, doublings_us = _latencies_us(where, crossings)
    passed = total * (rounds * (where.ranks - 1) / where.ranks)
    times = []
    for curve in of_kind(near, kind):
        if curve.algorithm != "ring":
            continue
        start_us = curve.setup_us + curve.hop_us * rounds * (where.per_node - 1)
        pace = min(curve.bandwidth_GBps * 1e9, slowest)
        times.append(1e-6 * (start_us + rounds * hops_us) + passed / pace)
        if kind == SUM:
            pace = min(curve.bandwidth_GBps * 1e9, tree)
            times.append(1e-6 * (start_us + 2 * doublings_us) + 2 * total / pace)
    if kind == SUM and where.per_node > 1 and where.ranks == where.per_node * where.nodes:
        between = total * (2 * (where.nodes - 1) / where.nodes) / slowest
        times.append(inside_s + 2e-6 * hops_us + between)
        times.append(inside_s + 2e-6 * doublings_us + 2 * total / tree)
    return most(inside_s, least(*times))


def _latencies_us(where: GroupTopology, crossings: Sequence[Crossing]) -> tuple[float, float]:
    """Return the latency once around a ring of nodes, and once down a tree of them."""
    around = down = 0.0
    for crossing, outer in zip(crossings, [*(c.domains for c in crossings[1:]), 1], strict=True):
        around += (crossing.domains - outer) * crossing.hop_us
        down += math.ceil(math.log2(max(crossing.domains / outer, 1.0))) * crossing.hop_us
    return around, down


def least(*times_s: Any) -> Any:
    """Return the least of numbers, or of arrays element by element."""
    return np.minimum.reduce(times_s) if isinstance(times_s[0], np.ndarray) else min(times_s)


def most(*times_s: Any) -> Any:
    """Return the greatest of numbers, or of arrays element by element."""
    return np.maximum.reduce(times_s) if isinstance(times_s[0], np.ndarray) else max(times_s)

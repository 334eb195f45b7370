# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the times of collectives and messages within and between nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvm_distir.core.collectives import sent_bytes
from tvm_distir.core.ir.operators import TRANSFERS

from .hardware import InterNode, IntraNode
from .network import GroupTopology, ring_steps

PERMUTE = "collective_permute"
STRAIGHT = (PERMUTE, "exchange", *TRANSFERS)
"""Collectives of which each device sends its data straight to where it belongs."""


def near_time_s(near: IntraNode, kind: str, payload_bytes: Any, ranks: int) -> Any:
    """Return the seconds inside a node.

    Parameters
    ----------
    near : IntraNode
    kind : str
    payload_bytes : int, or int64 array
        The payload. An array gives an array of seconds, equal to those of its numbers each by
        time.
    ranks : int

    Notes
    -----
    ``setup + steps latency + wire / bandwidth (1 + share / ranks) + root sqrt(wire)``: the last two
    terms, 0 for most systems, are what NCCL's measured curves need beyond alpha-beta. NCCL
    chooses between algorithms and protocols by size itself; the curve is that of its choices.
    What goes straight from a single device to another is as slow per byte as in a group of two.
    """
    sent = sent_bytes(kind, payload_bytes, ranks)
    if kind in TRANSFERS and near.send_us is not None:
        return 1e-6 * near.send_us + sent / (near.bandwidth_GBps * 1e9)
    alpha_us = near.setup_us + ring_steps(kind, ranks) * near.latency_us
    alpha_us = alpha_us + near.root_us * _root(sent * 1e-6)
    together = 2 if kind in STRAIGHT else ranks
    return 1e-6 * alpha_us + sent / (near.bandwidth_GBps * 1e9) * (1.0 + near.share / together)


def far_time_s(
    near: IntraNode,
    far: InterNode,
    kind: str,
    payload_bytes: Any,
    where: GroupTopology,
    far_bandwidth: float,
    hop_us: float | None,
) -> Any:
    """Return the seconds between nodes.

    Parameters
    ----------
    near, far : IntraNode, InterNode
    kind : str
    payload_bytes : int, or int64 array
        The payload, as in :func:`near_time_s`.
    where : GroupTopology
    far_bandwidth : float
        Bytes per second that the group sends out of a node.
    hop_us : float, optional
        The latency of a message between nodes. None: the collective runs as a ring, each of whose
        steps has the larger latency.

    Notes
    -----
    alpha-beta: ``setup + steps * latency + wire bytes / bandwidth``, where a ring runs at the
    pace of its slowest link. In an all-to-all ``L (n - L) / n`` of the result leave a node
    with L of the n members, together with what the others keep inside it. In a permutation one
    device sends all of its own out of a node, by its part of the adapters only.

    With ``hop_us`` the best of three: the *ring*, which passes every node (``nodes - 1`` hops per
    round) and has the fewest bytes; the *tree*, two hops per doubling of nodes, which sends the
    whole value up and down; and for sums *hierarchical*: scattered inside the node, a ring over
    nodes of each share, gathered inside the node.
    """
    near_bandwidth = near.bandwidth_GBps * 1e9
    sent, steps = sent_bytes(kind, payload_bytes, where.ranks), ring_steps(kind, where.ranks)
    if kind == "all_to_all":
        outside = where.per_node * (where.ranks - where.per_node) / where.ranks
        inside = (where.per_node - 1) / where.ranks
        beta_s = payload_bytes * max(outside / far_bandwidth, inside / near_bandwidth)
    elif kind == PERMUTE:
        beta_s = sent / min(near_bandwidth, far_bandwidth / where.per_node)
    else:
        beta_s = sent / min(near_bandwidth, far_bandwidth)
    if hop_us is None:
        alpha_us = near.setup_us + far.setup_us + steps * max(near.latency_us, far.latency_us)
        return 1e-6 * alpha_us + beta_s
    if kind in TRANSFERS:
        return 1e-6 * hop_us + beta_s
    if kind == PERMUTE:
        return 1e-6 * (near.setup_us + hop_us) + beta_s
    rounds = steps / (where.ranks - 1)
    start_us = near.setup_us + near.latency_us * rounds * (where.per_node - 1)
    ring_s = 1e-6 * (start_us + hop_us * rounds * (where.nodes - 1)) + beta_s
    if kind != "all_reduce":
        return ring_s
    doublings = math.ceil(math.log2(where.nodes))
    tree_s = 1e-6 * (start_us + 2 * hop_us * doublings) + 2 * payload_bytes / min(
        near_bandwidth, far_bandwidth
    )
    if where.per_node == 1 or where.ranks != where.per_node * where.nodes:
        return _least(ring_s, tree_s)
    shared = payload_bytes / where.per_node
    inside_s = near_time_s(near, kind, payload_bytes, where.per_node)
    crossing_s = (
        2
        * (where.nodes - 1)
        * (1e-6 * hop_us + shared / where.nodes * where.per_node / far_bandwidth)
    )
    return _least(ring_s, tree_s, inside_s + crossing_s)


def _root(value: Any) -> Any:
    return np.sqrt(value) if isinstance(value, np.ndarray) else math.sqrt(value)


def _least(*times_s: Any) -> Any:
    if isinstance(times_s[0], np.ndarray):
        return np.minimum.reduce(times_s)
    return min(times_s)

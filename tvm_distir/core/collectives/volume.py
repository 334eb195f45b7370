# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Count the bytes that a rank sends in a collective, by ring algorithms."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_distir.core.ir.operators.names import COLLECTIVES, TRANSFERS
from tvm_distir.support import SimulationError, nearest

RING_PASSES: Mapping[str, int] = {
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
        problem = f"there is no collective {kind!r}"
        remedy = nearest(str(kind), _KNOWN)
        raise SimulationError("DIST0712", problem, location="collective", remedy=remedy)


def sent_bytes(kind: str, result_bytes: int, ranks: int) -> int:
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
    if kind not in RING_PASSES:
        return result_bytes
    blocks = 1 if kind == "reduce_scatter" else ranks  # that the result has
    return -(-RING_PASSES[kind] * (ranks - 1) * result_bytes // blocks)


def sent_share(kind: str, total: int, ranks: int) -> int:
    """Return the bytes that each rank sends in a conversion along a mesh axis.

    The formulas of :func:`sent_bytes`, asked before the result is known: in the unit of ``total``,
    whatever it is (bytes, or weights of them), each pass around the ring rounded down.

    Parameters
    ----------
    kind : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter`` or ``all_to_all``.
    total : int
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
    sent = RING_PASSES[kind] * (total * (ranks - 1) // ranks)
    return sent // ranks if kind == "all_to_all" else sent

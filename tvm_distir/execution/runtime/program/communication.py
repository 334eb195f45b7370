# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the groups and pairs of ranks of a level-5 module that communicate.

Engines whose groups must be made before the run, in the same order on all processes, need the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm import ir


@dataclass(frozen=True)
class Communication:
    """The groups and pairs of ranks of a program that communicate.

    Attributes
    ----------
    groups : tuple of tuple of int
        The ranks of every group of a collective, in the order of the first use.
    transfers : tuple of (source, destination)
        The ordered pairs of ranks between which meshes send, sorted.
    """

    groups: tuple[tuple[int, ...], ...] = ()
    transfers: tuple[tuple[int, int], ...] = ()


def communication_of(mod: ir.IRModule) -> Communication:
    """Return the groups and pairs of ranks of a level-5 module that communicate."""
    from tvm import relax

    from tvm_distir.core.collectives import decode_collective, decode_transfer
    from tvm_distir.core.ir.operators import COLLECTIVES, collective_op, dist_op_name

    groups: dict[tuple[int, ...], None] = {}
    pairs: set[tuple[int, int]] = set()

    def visit(expr: relax.Expr) -> None:
        if collective_op(expr) in COLLECTIVES:
            groups.update(dict.fromkeys(decode_collective(expr).groups))
        elif dist_op_name(expr) == "send":
            tiles = decode_transfer(expr).tiles()
            pairs.update((tile.src, tile.dst) for tile in tiles if tile.src != tile.dst)

    for _, function in sorted(mod.functions.items(), key=lambda item: str(item[0].name_hint)):
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return Communication(tuple(groups), tuple(sorted(pairs)))

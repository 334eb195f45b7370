# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hoist values that the first layer computes and all layers read in front of the layers.

Exporters compute such a value where it is first needed. Before::

    a = f(x, w0); m = mask(positions); b = g(a, m)
    c = f(b, w1);                      d = g(c, m)

After::

    m = mask(positions)
    a = f(x, w0); b = g(a, m)
    c = f(b, w1); d = g(c, m)
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm import relax

from tvm_distir.core.rewriting import typed
from tvm_distir.support import reachable

from .choose import Repeat
from .sequence import Sequence, variables


def shared_in_front(
    fn: relax.Function, sequence: Sequence, repeats: Iterable[Repeat]
) -> relax.Function | None:
    """Hoist the values that all occurrences of a repeat read to the front of their blocks.

    What these values are made of goes with them; all else keeps its order. What the first repeat
    reads comes first: what a decoder reads is made by all of the encoder.

    Parameters
    ----------
    fn : relax.Function
    sequence : Sequence
        The bindings of the function.
    repeats : iterable of Repeat

    Returns
    -------
    function : relax.Function or None
        None where nothing moves: nothing is out of order, or sizes are cast on the way.
    """
    if any(isinstance(binding, relax.MatchCast) for binding in sequence.bindings):
        return None
    rank: dict[int, int] = {}
    ordered = sorted(repeats, key=lambda repeat: repeat.starts)
    for number, repeat in enumerate(ordered):
        for position in _made_of(sequence, _shared(sequence, repeat)):
            rank.setdefault(position, number)
    blocks, at, moved = [], 0, False
    for block in fn.body.blocks:
        positions = range(at, at + len(block.bindings))
        at += len(block.bindings) + 1
        order = list(positions)
        if isinstance(block, relax.DataflowBlock):
            order.sort(key=lambda position: rank.get(position, len(ordered)))
        moved |= order != list(positions)
        blocks.append(type(block)([sequence.bindings[position] for position in order]))
    if not moved:
        return None
    body = typed(relax.SeqExpr(blocks, fn.body.body), fn.body.ty)
    return relax.Function(fn.params, body, fn.ret_ty, fn.is_pure, fn.attrs)


def _shared(sequence: Sequence, repeat: Repeat) -> set[int]:
    """Return the positions of the values that have the same position in all occurrences."""
    stretches = [sequence.operands(s, s + repeat.length) for s in repeat.starts]
    return {
        sequence.position[same[0]]
        for same in zip(*stretches, strict=True)
        if same[0] in sequence.position and all(leaf.same_as(same[0]) for leaf in same)
    }


def _made_of(sequence: Sequence, positions: set[int]) -> set[int]:
    """Return these positions and those of all values they depend on."""

    def operands(position: int) -> list[int]:
        read = variables(sequence.bindings[position].value)
        return [sequence.position[var] for var in read if var in sequence.position]

    return set(reachable(positions, operands))

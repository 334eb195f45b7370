# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Derives sharding rules from TIR.

A factor is a class of iteration variables and buffer dims that are sharded together: moving a
variable by a block of its extent moves every index of a dim of the class by a block of that
dim, and leaves all else as it is (:mod:`.shift`). Union-find ties them; whatever does not move
so pins its class. Then the blocks are visited once per class: a spatial variable makes results
sharded, a reduced variable makes them partial, and partial values pass linear blocks only.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tvm_distir.core.ops.dims import size_bytes
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.factor import Rule

from .compute_blocks import Block, NotUnderstood, blocks_of, count_flops, kind_of, loads
from .dim_groups import Buffers, Node, NodeClasses, class_size, classes_of
from .flow import PartialKinds, flow

if TYPE_CHECKING:
    from tvm import ir, tirx

#: Judges a factor (operand dims, result dims, size): None, or why the op cannot follow it.
Accept = Callable[[dict[int, int], dict[int, int], Any], str | None]


def _add_factor(
    draft: Draft,
    classes: NodeClasses,
    buffers: Buffers,
    blocks: list[Block],
    nodes: list[Node],
    accept: Accept | None,
) -> str | None:
    """Add the factor of a class, or return why its dims must be replicated."""
    pinned = [classes.pins[n] for n in nodes if n in classes.pins]
    if pinned:
        return pinned[0]
    inputs = len(draft.call.ins)
    dims = [(b, d) for kind, b, d in nodes if kind == "dim" and b < buffers.params]
    if len({b for b, _ in dims}) != len(dims):
        return "two dims of a tensor are indexed together"
    sizing = class_size(classes, blocks, nodes)
    if sizing is None:
        return "its extents cannot be split into equal blocks"
    size, aligned = sizing
    cut = {(kind, a, b) for kind, a, b in nodes}
    states = flow(blocks, buffers.number, cut, {}, accept is not None)
    if isinstance(states, str):
        return states
    results = [states.get(b, "") for b in range(inputs, buffers.params)]
    kinds = {s for s in results if s}
    if kinds and (len(kinds) > 1 or "" in results):
        return "only some of the results are reduced over it"
    ins = {b: d for b, d in dims if b < inputs}
    outs = {b - inputs: d for b, d in dims if b >= inputs}
    if not ins and (not outs or kinds):
        return None
    if kinds and outs:
        return "it is reduced, and the result is used in the kernel"
    if accept is not None and (refusal := accept(ins, outs, size)) is not None:
        return refusal
    uneven = aligned and not kinds and not _indirect_buffers(blocks, buffers)
    known, kind = size if isinstance(size, int) else None, kinds.pop() if kinds else "map"
    draft.tie(ins, outs, kind, size=known, uneven=uneven)
    return None


def _linear(draft: Draft, buffers: Buffers, blocks: list[Block]) -> None:
    """Find operand groups that all results are linear in: single ones, pairs, all the rest."""
    inputs = len(draft.call.ins)
    results = range(inputs, buffers.params)

    def carries(group: tuple[int, ...]) -> bool:
        start: PartialKinds = dict.fromkeys(group, "sum")
        states = flow(blocks, buffers.number, set(), start, False)
        return not isinstance(states, str) and all(states.get(b) == "sum" for b in results)

    single = [i for i in range(inputs) if carries((i,))]
    draft.linear(*((i,) for i in single))
    rest = [i for i in range(inputs) if i not in single]
    groups = list(combinations(rest, 2))
    if len(rest) > 2:
        groups.append(tuple(rest))  # type: ignore[arg-type]
    draft.linear(*(g for g in groups if carries(g)))


def _product_of_loads(block: Block) -> bool:
    term = block.term
    while term is not None and kind_of(term) == "Cast":
        term = term.value
    if term is None or block.combiner != "sum" or kind_of(term) != "Mul":
        return False
    sources = [x.source for e in (term.a, term.b) for x in list(loads(e))[:1]]
    return len(sources) == 2 and not sources[0].same_as(sources[1])


def _indirect_buffers(blocks: list[Block], buffers: Buffers) -> list[int]:
    """Return the numbers of the buffers that are indexed by computed values."""
    stores = [store for block in blocks for store in block.stores]
    read = [x for store in stores for e in store.read() for x in loads(e)]
    indirect = [x for x in read if any(True for i in x.indices for _ in loads(i))]
    return sorted({buffers.number(x.source) for x in indirect})


def _fits(buffers: Buffers, shape: CallShape) -> bool:
    """Return whether the PrimFunc's buffers are the call's operands and results."""
    described = [*shape.ins, *shape.outs]

    def may_be(extent: int | ir.Expr, other: int | ir.Expr) -> bool:
        return not isinstance(extent, int) or not isinstance(other, int) or extent == other

    return buffers.params == len(described) and all(
        len(have) == len(want) and all(map(may_be, have, want))
        for have, want in zip(buffers.shapes, described)
    )


def _state_work(draft: Draft, buffers: Buffers, blocks: list[Block], flops: int) -> None:
    call = draft.call
    gathered = [i for i in _indirect_buffers(blocks, buffers) if i < len(call.ins)]
    if any(map(_product_of_loads, blocks)):
        draft.work(flops, "matmul")
    elif gathered:  # as many elements as the largest result has
        read = {
            i: min(
                size_bytes(call.ins[i], call.in_dtypes[i]),
                max(size_bytes(s, call.in_dtypes[i]) for s in call.outs),
            )
            for i in gathered
        }
        draft.work(flops, "gather", in_bytes=read)


def analyse(func: tirx.PrimFunc, shape: CallShape, accept: Accept | None = None) -> Draft:
    """Draft the rule of a PrimFunc called with the described operands.

    With ``accept``, only factors that it accepts, and whose terms are not processed further.
    """
    draft = Draft(shape, "derived")
    flops = count_flops(func.body)
    draft.work(flops)
    buffers = Buffers(func)
    if not _fits(buffers, shape):
        draft.default_why = "the PrimFunc's buffers are not the call's operands and results"
        return draft
    try:
        blocks = list(blocks_of(func.body))
        classes = classes_of(buffers, blocks)
    except NotUnderstood as reason:
        draft.default_why = f"its TIR is not supported: it contains {reason}"
        return draft
    for nodes in classes.members().values():
        why = _add_factor(draft, classes, buffers, blocks, nodes, accept)
        for kind, b, d in nodes:
            if why is not None and kind == "dim" and b < buffers.params:
                out = b >= len(shape.ins)
                draft.replicate("out" if out else "in", b - out * len(shape.ins), d, why)
    draft.default_why = "its TIR does not traverse it"
    _linear(draft, buffers, blocks)
    _state_work(draft, buffers, blocks, flops)
    return draft


def derive_primfunc(func: tirx.PrimFunc, shape: CallShape) -> Rule:
    """Derive the rule of a ``call_tir`` from its PrimFunc.

    Anything that is not understood makes dims whole, with the reason in ``why_replicated``.
    """
    return analyse(func, shape).rule()

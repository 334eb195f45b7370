# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Defines sharding rules of contractions: matmul, einsum and outer."""

from __future__ import annotations

from collections import Counter

from tvm_distir.core.ops.dims import elements, nominal, same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.padding import ZERO_TERMS
from tvm_distir.core.ops.registration import SAME_OP, Family

FAMILY: Family = Family()


@FAMILY.rule("relax.matmul", local=SAME_OP, padding=ZERO_TERMS)
def matmul(call: CallShape) -> Draft:
    """Shard batch dims, rows and columns; the contracted dim gives partial sums.

    Shapes ``(..., M, K) x (..., K, N) -> (..., M, N)``; a 1-D operand has no M (N).
    FLOPs: 2 M N K per batch element.
    """
    draft = Draft(call)
    a, b, out = call.ins[0], call.ins[1], call.outs[0]
    rows, columns = len(a) > 1, len(b) > 1
    batch = len(out) - rows - columns
    draft.tie({0: len(a) - 1, 1: max(len(b) - 2, 0)}, {}, "sum")
    for d in range(batch):
        ins = {}
        for i, shape in enumerate((a, b)):
            operand_dim = d - batch + len(shape) - 2
            if len(shape) > 2 and operand_dim >= 0 and same(shape[operand_dim], out[d]):
                ins[i] = operand_dim
        draft.tie(ins, {0: d})
    if rows:
        draft.tie({0: len(a) - 2}, {0: batch})
    if columns:
        draft.tie({1: len(b) - 1}, {0: len(out) - 1})
    draft.linear((0,), (1,))
    return draft.work(2 * elements(out) * nominal(a[-1]), "matmul")


@FAMILY.rule("relax.outer", local=SAME_OP)
def outer(call: CallShape) -> Draft:
    """Shard the outer product of two vectors, which is linear in each."""
    draft = Draft(call)
    draft.tie({0: 0}, {0: 0})
    draft.tie({1: 0}, {0: 1})
    draft.linear((0,), (1,))
    return draft.per_element()


def _letters(equation: str, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """Return index names per operand and result; ellipsis dims are numbered from the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")

    def spread(term: str, rank: int) -> list[str]:
        head, dots, tail = term.partition("...")
        hidden = rank - len(head) - len(tail) if dots else 0
        return [*head, *(f".{hidden - k}" for k in range(hidden)), *tail]

    terms = [spread(t, n) for t, n in zip(left.split(","), ranks)]
    hidden = max((sum(x.startswith(".") for x in t) for t in terms), default=0)
    if arrow:
        return terms, spread(right, hidden + len(right.replace("...", "")))
    counts = Counter(x for t in terms for x in t)
    named = sorted(x for x, n in counts.items() if n == 1 and not x.startswith("."))
    return terms, [*(f".{hidden - k}" for k in range(hidden)), *named]


@FAMILY.rule("relax.einsum", local=SAME_OP, padding=ZERO_TERMS)
def einsum(call: CallShape) -> Draft:
    """Make each index name a factor: kept when the result has it, summed otherwise."""
    draft = Draft(call)
    terms, result = _letters(str(call.attrs.subscripts), [len(s) for s in call.ins])
    names = list(dict.fromkeys(x for t in terms for x in t))
    space = 1
    for name in names:
        extents = [s[d] for t, s in zip(terms, call.ins) for d, x in enumerate(t) if x == name]
        space *= max(nominal(n) for n in extents)
        if any(t.count(name) > 1 for t in (*terms, result)):
            for i, t in enumerate(terms):
                for d in (d for d, x in enumerate(t) if x == name):
                    draft.replicate("in", i, d, "an index occurs twice in a term (a diagonal)")
            continue
        ins = {i: t.index(name) for i, t in enumerate(terms) if name in t}
        if name in result:
            draft.tie(ins, {0: result.index(name)})
        else:
            draft.tie(ins, {}, "sum")
    draft.linear(*((i,) for i in range(len(call.ins))))
    return draft.work(len(call.ins) * space, "matmul" if len(call.ins) > 1 else "memory")

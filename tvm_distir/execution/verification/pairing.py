# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Pair the bindings of the distributed program with those of the original."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.analysis import PartialState
from tvm_distir.core.ir import flat_types, handle
from tvm_distir.core.ir.operators import dist_op_name

from .instrumented import TracedProgram, leaf_paths, type_key

Leaf = tuple[int, tuple[int, ...]]
"""Number of a binding, and the place of the leaf in the (nested) tuple that it binds."""


@dataclass(frozen=True)
class ValuePair:
    """A value of the distributed module, and the equal value of the original."""

    leaf: Leaf
    original: Leaf


def _is_placement_change(value: relax.Expr) -> bool:
    """Return whether a binding only changes the placement of its operand."""
    return isinstance(value, ir.Call) and (
        dist_op_name(value) == "partial"
        or str(getattr(value.op, "name", "")).endswith("dist.redistribute")
    )


def pairs_of(original: TracedProgram, distributed: TracedProgram) -> list[ValuePair]:
    """Pair the reduced values of the distributed module, in order, with those of the original.

    Values of the same name go together in the order they are bound, when their types agree. What a
    redistribute gives equals its operand.
    """
    pending: dict[tuple[str, str], deque[int]] = defaultdict(deque)
    for number, step in enumerate(original.steps):
        pending[_family(step.function), str(step.var.name)].append(number)
    known: dict[relax.Var, Leaf | int] = {}
    state = _partial(distributed)
    pairs = []
    for number, step in enumerate(distributed.steps):
        at = _match(step, known, pending, original)
        if at is None:
            continue
        known[step.var] = at
        partial = state.get(handle(step.var), [])
        for i, path in enumerate(leaf_paths(step.var.ty)):
            if (i < len(partial) and partial[i]) or not _placed(step.var.ty, i):
                continue
            pairs.append(ValuePair((number, path), (at, path)))
    return pairs


def _match(step: Any, matched: Any, pending: Any, original: TracedProgram) -> int | None:
    if _is_placement_change(step.value):
        known: int | None = matched.get(step.value.args[0])
        return known
    queue = pending.get((_family(step.function), str(step.var.name)))
    if not queue or type_key(original.steps[queue[0]].var.ty) != type_key(step.var.ty):
        return None
    at: int = queue.popleft()
    return at


def _family(function: str) -> str:
    """Return the name of a function without the number of its specialisation: ``f`` of ``f_1``."""
    head, _, number = function.rpartition("_")
    return head if head and number.isdigit() else function


def _placed(ty: ir.Type, number: int) -> bool:
    return isinstance(flat_types(ty)[number], DTensorType)


def _partial(distributed: TracedProgram) -> dict[int, list[frozenset[int]]]:
    """Return the mesh axes along which tensors are unfinished sums, by handles of variables."""
    entry = distributed.mod[distributed.entry]
    bindings = [relax.VarBinding(s.var, s.value) for s in distributed.steps]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], entry.body.body)
    fn = relax.Function(list(entry.params), body, entry.ret_ty, bool(entry.is_pure), entry.attrs)
    state = PartialState(distributed.mod, distributed.entry, fn, legalized=False)
    state.check()
    return state.state

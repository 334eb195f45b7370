# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Report which ops and which calls of a module have a sharding rule, and what each allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvm import ir

from tvm_distir.core.ir.types import flat_types, relax_functions, static_shape, tensor_type
from tvm_distir.core.ops.factor import Rule
from tvm_distir.core.ops.lookup import rule_of
from tvm_distir.core.ops.match import describe_factor
from tvm_distir.core.ops.registry import registered_ops
from tvm_distir.core.ops.unruled import why_none
from tvm_distir.core.rewriting.calls import TIR_CALLS
from tvm_distir.support import PropagationError

#: Families of ops that no rule is asked for.
_WHY_SYSTEM = {
    "relax.assert_op": "each device runs it, on full tensors",
    "relax.builtin.": "it manages memory",
    "relax.ccl.": "it is a collective",
    "relax.dist.": "it moves data between devices, or states where they are",
    "relax.inspect.": "it reads the type of a tensor, not its values",
    "relax.memory.": "it manages memory",
    "relax.print": "each device runs it, on full tensors",
    "relax.vm.": "it is an instruction of the virtual machine",
}


@dataclass(frozen=True)
class OpCoverage:
    """Source of an op's rule: ``hand``, ``derived`` (from its kernel) or ``none``.

    ``system``: no tensor computation, or a collective; it is not sharded by a rule.

    Attributes
    ----------
    op : str
    source : str
    why : str
        The reason why there is no rule, for ``system`` and ``none``.
    """

    op: str
    source: str
    why: str = ""


@dataclass(frozen=True)
class CallCoverage:
    """A distinct call of a module and the rule that it has.

    Attributes
    ----------
    op : str
        The name of the op or function that is called.
    signature : str
        Shapes of operands and results.
    count : int
        The number of occurrences in the module's functions.
    source : str
        ``hand``, ``derived`` or ``none``.
    factors : tuple of str
        The dims that may be sharded together, as ``S(0), R -> S(0)``.
    why_replicated : tuple of str
        The dims that must be replicated, as ``in0.dim1: why``; for ``none``, the error.
    """

    op: str
    signature: str
    count: int
    source: str
    factors: tuple[str, ...]
    why_replicated: tuple[str, ...]


def _why_system(op: str) -> str | None:
    """Return why no rule is needed for an op; None for ops that compute on tensors."""
    return next((why for family, why in _WHY_SYSTEM.items() if op.startswith(family)), None)


def op_coverage() -> tuple[OpCoverage, ...]:
    """Return all Relax ops that TVM knows, by name, with the source of their rules."""
    hand = set(registered_ops())
    rows = []
    for name in sorted(str(n) for n in ir.Op.list_op_names() if str(n).startswith("relax.")):
        kernel = name in TIR_CALLS or ir.Op.get(name).get_attr("FLegalize") is not None
        why = why_none(name)
        none = "" if kernel else "it has no legalization to derive a rule from"
        none = none if why is None else why[0]
        if name in hand:
            rows.append(OpCoverage(name, "hand"))
        elif (system := _why_system(name)) is not None:
            rows.append(OpCoverage(name, "system", system))
        else:
            rows.append(OpCoverage(name, "none" if none else "derived", none))
    return tuple(rows)


def _shape_text(ty: Any) -> str:
    shape = static_shape(ty)
    if tensor_type(ty) is None or shape is None:
        return "?"
    return "(" + ",".join(str(n) for n in shape) + ")"


def _signature(call: ir.Call, result: Any) -> str:
    ins = [_shape_text(t) for a in call.args for t in flat_types(a.ty) if tensor_type(t)]
    return f"{' '.join(ins) or '-'} -> {' '.join(map(_shape_text, flat_types(result)))}"


def _unsharded(rule: Rule) -> tuple[str, ...]:
    return tuple(
        f"{where}: {why}" for where, why in rule.why_replicated.items() if why != "its extent is 1"
    )


def call_coverage(mod: ir.IRModule) -> tuple[CallCoverage, ...]:
    """Return the distinct op calls of a module's Relax functions, in order of first appearance."""
    result: dict[tuple[str, str, str], CallCoverage] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for _, func in relax_functions(mod):
        for binding in (b for block in func.body.blocks for b in block.bindings):
            call = getattr(binding, "value", None)
            if not isinstance(call, ir.Call) or not isinstance(call.op, ir.Op):
                continue
            name, signature = str(call.op.name), _signature(call, binding.var.ty)
            try:
                rule = rule_of(call, mod, binding.var.ty)
                factors = tuple(
                    describe_factor(f) + ("" if f.kind != "stat" else " (stat)")
                    for f in rule.factors
                )
                row = CallCoverage(name, signature, 0, rule.source, factors, _unsharded(rule))
            except PropagationError as error:
                row = CallCoverage(name, signature, 0, "none", (), (str(error),))
            key = (name, signature, "; ".join((*row.factors, *row.why_replicated)))
            result.setdefault(key, row)
            counts[key] = counts.get(key, 0) + 1
    return tuple(
        CallCoverage(r.op, r.signature, counts[k], r.source, r.factors, r.why_replicated)
        for k, r in result.items()
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Format an aligned text table; the last column is not padded."""
    lines = [head, *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(x.ljust(w) for x, w in zip(line, widths)), line[-1]]).rstrip()
        for line in lines
    )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Matches a call with its rule along each mesh axis, and reports the partial sums it carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax.distributed import DTensorType

from tvm_distir.core.ir.mesh import mesh_shape
from tvm_distir.core.ir.placement import R, labels_of
from tvm_distir.core.rewriting.calls import leaves_of, location_of, tensor_args
from tvm_distir.support import GenericConst

from .factor import Factor, Rule
from .lookup import rule_of
from .match import match_factor
from .terms import CallSharding, Terms, axes_of


def call_sharding(
    call: ir.Call, out_leaves: Sequence[ir.Type], mod: ir.IRModule, function: str, var: relax.Var
) -> CallSharding:
    """Match a call over DTensors with its rule along every mesh axis.

    Parameters
    ----------
    call : Call
        A call as levels 3 and 4 hold it.
    out_leaves : sequence of types
        Flattened result types (DTensors).
    mod, function, var
        The place of the call, for rules of PrimFuncs and for messages.

    Raises
    ------
    PropagationError
        DIST0401 when the op has no rule, DIST0405 when the placements follow no factor of it.
    """
    mesh = mesh_shape(out_leaves[0].device_mesh)
    operands = [leaf for arg in tensor_args(call) for leaf in leaves_of(arg)]
    ins: list[Any] = [
        labels_of(ty.placement)
        if type(ty) is DTensorType and type(expr) is not GenericConst
        else None
        for expr, _, ty in operands
    ]
    outs = [labels_of(ty.placement) for ty in out_leaves]
    replicated = tuple([R] * len(mesh))
    busy = [
        a
        for a in range(len(mesh))
        if any(row is not None and row[a] != R for row in ins) or any(r[a] != R for r in outs)
    ]
    if not busy:
        rows = tuple(replicated if r is None else r for r in ins)
        return CallSharding((None,) * len(mesh), rows, tuple(outs), (), None)
    location = location_of(function, var, call)
    rule = rule_of(call, mod)
    factors: list[Factor | None] = [None] * len(mesh)
    terms: list[tuple[int, str]] = []
    for axis in busy:
        along = [None if r is None else r[axis] for r in ins]
        number = match_factor(rule, along, [r[axis] for r in outs], location)
        if number is None:
            continue
        factors[axis] = rule.factors[number]
        if rule.factors[number].reduces:
            terms.append((axis, rule.factors[number].kind))
    rows = tuple(
        row
        if row is not None
        else tuple(R if f is None or f.ins[i] is None else f.ins[i] for f in factors)
        for i, row in enumerate(ins)
    )
    return CallSharding(tuple(factors), rows, tuple(outs), tuple(terms), rule)


def carried(
    rule: Rule, operand_terms: Sequence[Terms], constants: Sequence[int], sharding: CallSharding
) -> tuple[Terms, dict[int, tuple[int, ...]]]:
    """Return the partial sums of operands that a linear op passes on to its results.

    An axis is carried when the operands unfinished along it (by a sum) are one of the op's
    linear groups, constants filling the gaps, and nothing is sharded along it.

    Parameters
    ----------
    rule : Rule
        The rule of the call.
    operand_terms : sequence of Terms
        The partial sums of each flattened tensor operand.
    constants : sequence of int
        Operands that are constants.
    sharding : CallSharding
        The form of the call.

    Returns
    -------
    terms : Terms
        The partial sums that are passed on.
    needed : mapping of int to axes
        Constants that must be made partial along the axes.
    """
    out: list[tuple[int, str]] = []
    needed: dict[int, tuple[int, ...]] = {}
    for axis in sorted({a for terms in operand_terms for a, _ in terms}):
        members = {i for i, terms in enumerate(operand_terms) if axis in axes_of(terms)}
        if sharding.factors[axis] is not None:
            continue
        if any(dict(operand_terms[i])[axis] != "sum" for i in members):
            continue
        for group in rule.linear:
            if members <= set(group) <= members | set(constants):
                out.append((axis, "sum"))
                for i in sorted(set(group) - members):
                    needed[i] = (*needed.get(i, ()), axis)
                break
    return tuple(out), needed

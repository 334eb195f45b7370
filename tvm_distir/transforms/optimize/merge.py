# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Move reductions below linear ops, so that the sum of two reduced values is reduced once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var

from tvm_distir.core.ir import R, as_dtensor, labels_of, mesh_key
from tvm_distir.core.ir.operators import call_axes, dist_op_name, ops
from tvm_distir.core.ops import call_sharding, carried, rule_of, sums
from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.redistribution import local_bytes
from tvm_distir.core.rewriting import rebuild, substitute
from tvm_distir.support import MeshError, PropagationError

from .binding_rewriter import Editor, FunctionStep, is_plain_op, operands_of, rewrite_of


@module_pass("legalized")
def MergeReductions(*, scatters: bool = False) -> Rewrite:
    """Reduce sums of partial values once.

    ``add(all_reduce(a), all_reduce(b))`` becomes ``all_reduce(add(a, b))``, and so on through
    every op that is linear in these operands: the three gradients of a layer's input through
    query, key and value are one ``all_reduce`` instead of three. A reduction also moves below a
    linear op whose result is smaller (a slice, a sum over another dim). What the reductions gave
    must have no other reader.

    The order in which terms are added changes: ``(a0 + a1) + (b0 + b1)`` is now
    ``(a0 + b0) + (a1 + b1)``, and a factor may be multiplied before the sum. Sums that are exact
    stay equal bit for bit.

    Parameters
    ----------
    scatters : bool
        Merge ``reduce_scatter`` too. The ops between then work on whole operands instead of
        shards: fewer bytes on the wire, more arithmetic, and the whole partial values are
        alive at once.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([merge_step(scatters)])


@dataclass(frozen=True)
class Pending:
    """Value that is a reduction, or a chain of linear ops on a reduction.

    Attributes
    ----------
    root : Call
        The reduction.
    chain : tuple or None
        Last op after it, as (variable, call, operand that is the chain, earlier chain).
    """

    root: ir.Call
    chain: Any = None


class _Merge(Editor):
    def prepare(self, reductions: Sequence[str]) -> None:
        """Take the kinds of reductions that are merged."""
        self.reductions = reductions
        self.pending: dict[Var, Pending] = {}

    def visit(self, var: Var, value: Expr, kind: str | None) -> Expr:
        """Apply an op to its operands before their reductions, if that saves bytes."""
        if kind in self.reductions and str(value.attrs["op"]) == "sum":
            self._hold(var, Pending(value))
        if not is_plain_op(value, var):
            return value
        operands = operands_of(value)
        pending = {
            arg: self.pending[arg]
            for arg in operands
            if isinstance(arg, ir.Var) and arg in self.pending
        }
        roots = [part.root for part in pending.values()]
        if not roots or any(_kind(root) != _kind(roots[0]) for root in roots[1:]):
            return value
        if not self._is_linear(value, [arg in pending for arg in operands]):
            return value
        before, after = sum(local_bytes(root.ty) for root in roots), local_bytes(var.ty)
        if len(pending) == 1 and after == before:
            # Nothing saved here; perhaps where a later op adds it to another.
            (arg,) = pending
            self._hold(var, Pending(roots[0], (var, value, arg, pending[arg].chain)))
            return value
        return value if after > before else self._merged(var, value, pending)

    def _merged(self, var: Var, value: ir.Call, pending: dict[Var, Pending]) -> Expr:
        """Reduce the result of a call instead of its operands, if that is valid."""
        root = next(iter(pending.values())).root
        mesh, axes = root.attrs["device_mesh"], call_axes(root)
        links = [link for part in pending.values() for link in _links(part)]
        legal = _completes(var.ty, root) and self._carries(var, value, set(pending), axes)
        if not legal or not all(self._carries(v, c, {arg}, axes) for v, c, arg, _ in links):
            return value
        raw = {arg: self._raw(part, axes) for arg, part in pending.items()}
        terms = self.emit(_on_terms(value, raw, var, axes), f"{var.name}_terms")
        if dist_op_name(root) == "all_reduce":
            done = ops.all_reduce(terms, mesh, axes, "sum")
        else:
            done = ops.reduce_scatter(terms, mesh, axes, labels_of(var.ty.placement)[axes[0]])
        done = self.normalize(done)
        self._hold(var, Pending(done))
        return done

    def _hold(self, var: Var, pending: Pending) -> None:
        if self.readers[var] == 1:
            self.pending[var] = pending
            self.watch_reader(var)

    def _raw(self, pending: Pending, axes: Sequence[int]) -> Var:
        """Return the operand of a reduction, after the linear ops that followed it."""
        value = pending.root.args[0]
        for var, call, arg, _ in _links(pending):
            value = self.emit(_on_terms(call, {arg: value}, var, axes), f"{var.name}_terms")
        return value

    def _is_linear(self, call: ir.Call, members: list[bool]) -> bool:
        """Return whether an op is linear in a subset of its operands."""
        chosen = {i for i, member in enumerate(members) if member}
        try:
            return any(set(group) == chosen for group in rule_of(call, self.mod).linear)
        except PropagationError:
            return False

    def _carries(self, var: Var, call: ir.Call, args: set[Var], axes: Sequence[int]) -> bool:
        """Return whether a call on partial operands ``args`` returns the partial result."""
        operands = operands_of(call)
        if any(self.unfinished(e) & set(axes) for e in [e for e in operands if e not in args]):
            return False
        swapped = {arg: relax.Var("terms", _replicated_type(arg.ty, axes)) for arg in args}
        new = _on_terms(call, swapped, var, axes)
        have = [sums(axes) if e in args else () for e in operands]
        try:
            rule = rule_of(new, self.mod)
            sharding = call_sharding(
                new, [_replicated_type(var.ty, axes)], self.mod, self.name, var
            )
        except (PropagationError, MeshError):
            return False
        handed, needed = carried(rule, have, (), sharding)
        return handed == sums(axes) and not needed


def _links(pending: Pending) -> list[Any]:
    """Return the ops after a reduction, first to last."""
    links, chain = [], pending.chain
    while chain is not None:
        links.append(chain)
        chain = chain[-1]
    return links[::-1]


def _kind(root: ir.Call) -> tuple[Any, ...]:
    return dist_op_name(root), mesh_key(root.attrs["device_mesh"]), call_axes(root)


def _replicated_type(ty: ir.Type, axes: Sequence[int]) -> ir.Type:
    """Return a DTensor type that is replicated along mesh axes."""
    labels = list(labels_of(ty.placement))
    for axis in axes:
        labels[axis] = R
    return as_dtensor(ty, ty.device_mesh, labels)


def _on_terms(call: ir.Call, raw: dict[Var, Var], var: Var, axes: Sequence[int]) -> ir.Call:
    """Write a call on other operands, with its result replicated along the axes."""
    args = [substitute(arg, raw) for arg in call.args]
    return rebuild(call, call.op, args, _replicated_type(var.ty, axes))


def _completes(ty: ir.Type, root: ir.Call) -> bool:
    """Return whether a value of a type can be the result of the same kind of reduction."""
    labels, axes = labels_of(ty.placement), call_axes(root)
    if dist_op_name(root) == "all_reduce":
        return all(labels[a] == R for a in axes)
    dim = labels[axes[0]]
    minor = [labels[a] for a in range(axes[0], len(labels)) if a not in axes]
    return dim != R and all(labels[a] == dim for a in axes) and dim not in minor


def merge_step(scatters: bool) -> FunctionStep:
    """Return the step of :func:`MergeReductions`."""
    kinds = ("all_reduce", "reduce_scatter") if scatters else ("all_reduce",)
    return FunctionStep(_Merge, kinds, reductions=kinds)

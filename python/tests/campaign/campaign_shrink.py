# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Smaller cases that fail in the same way: fewer rules, outputs, mesh axes, bindings."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import tvm_ffi
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tests.campaign.campaign_check import Case, Outcome, check
from tvm_distir.transforms.inline.passes import InlinePrivateFunctions

Edit = Callable[[], Case]


def shrink(case: Case, outcome: Outcome, limit_s: float = 90.0) -> Case:
    """Apply edits as long as the outcome keeps its key; stop after ``limit_s`` seconds."""
    end = time.monotonic() + limit_s
    threads = outcome.stage == "threads"
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for edit in edits(case):
            if time.monotonic() > end:
                break
            try:
                result = cleaned(edit())
            except Exception:  # an edit that makes no module is no candidate
                continue
            if _size(result) < _size(case) and check(result, threads).key == outcome.key:
                case, smaller = result, True
                break
    return case


def _size(case: Case) -> tuple[int, ...]:
    bindings = sum(len(_bindings(fn)) for _, fn in _functions(case.mod))
    axes = [n for mesh in _meshes(case.plan) for n in mesh["axes"].values()]
    rules = case.plan["rules"]
    stored = sum(rule.get("stationary", False) for rule in rules)
    named = sum(word not in ("R", "?") for r in rules for word in r["placement"].split(", "))
    functions = sum(1 for _ in _functions(case.mod))
    params = len(case.mod["main"].params)
    return (bindings + functions + len(rules) + params + len(case.exact), sum(axes), stored, named)


def _functions(mod: ir.IRModule) -> Iterator[tuple[Any, relax.Function]]:
    for gv, fn in mod.functions.items():
        if isinstance(fn, relax.Function):
            yield gv, fn


def _bindings(fn: relax.Function) -> list[Any]:
    return [b for block in fn.body.blocks for b in block.bindings]


def _meshes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"axes": plan["mesh"]}] if "mesh" in plan else list(plan["meshes"].values())


def edits(case: Case) -> Iterator[Edit]:
    """Edits to try, those that remove most first."""
    yield lambda: _without_dead(case)
    yield lambda: _without_unused(case)
    yield lambda: replace(case, mod=InlinePrivateFunctions()(case.mod))
    for i in range(len(case.exact)):
        if len(case.exact) > 1:
            yield lambda i=i: _one_output(case, i)
    for binding in reversed(_bindings(case.mod["main"])):
        ty = binding.var.ty
        if isinstance(ty, relax.TensorType) and str(ty.dtype).startswith(("float", "bfloat")):
            yield lambda var=binding.var: _cut(case, "main", var, None)
    yield from _replacements(case)
    for gv, fn in _functions(case.mod):
        used = set(_read(fn))
        for binding in reversed(_bindings(fn)):
            if binding.var not in used:
                yield lambda n=str(gv.name_hint), v=binding.var: _cut(case, n, v, v)
    yield from _plan_edits(case)


def _replacements(case: Case) -> Iterator[Edit]:
    """A variable by an earlier one of the same type."""
    for gv, fn in _functions(case.mod):
        name, seen = str(gv.name_hint), list(fn.params)
        for binding in _bindings(fn):
            for other in seen:
                if tvm_ffi.structural_equal(other.ty, binding.var.ty):
                    yield lambda n=name, v=binding.var, o=other: _cut(case, n, v, o)
                    break
            seen.append(binding.var)


def _read(fn: relax.Function) -> Iterator[Any]:
    """Variables that a binding or the result reads."""
    yield from relax.analysis.free_vars(fn.body.body)
    for binding in _bindings(fn):
        yield from relax.analysis.free_vars(binding.value)


def _plan_edits(case: Case) -> Iterator[Edit]:
    rules = case.plan["rules"]

    def with_plan(**changes: Any) -> Case:
        return replace(case, plan={**copy.deepcopy(case.plan), **changes})

    for i in range(len(rules)):
        yield lambda i=i: with_plan(rules=rules[:i] + rules[i + 1 :])
    for i, rule in enumerate(rules):
        if rule.get("stationary"):
            loose = {**rule, "stationary": False}
            yield lambda i=i, r=loose: with_plan(rules=[*rules[:i], r, *rules[i + 1 :]])
        words = rule["placement"].split(", ")
        for a, word in enumerate(words):
            if word != "R":
                freed = {**rule, "placement": ", ".join([*words[:a], "R", *words[a + 1 :]])}
                yield lambda i=i, r=freed: with_plan(rules=[*rules[:i], r, *rules[i + 1 :]])
    if "mesh" not in case.plan:
        return
    axes = case.plan["mesh"]
    for number, axis in enumerate(axes):
        if len(axes) > 1:
            remaining = {k: n for k, n in axes.items() if k != axis}
            fewer = [{**r, "placement": _without(r["placement"], number)} for r in rules]
            yield lambda k=remaining, f=fewer: with_plan(mesh=k, rules=f)
        if axes[axis] > 2:
            yield lambda k={**axes, axis: 2}: with_plan(mesh=k)


def _without(placement: str, number: int) -> str:
    words = placement.split(", ")
    return ", ".join(words[:number] + words[number + 1 :])


@mutator
class _Replace(PyExprMutator):  # type: ignore[misc]
    """Drops the binding of a variable, or gives it another value."""

    def __init__(self, mod: ir.IRModule, var: Any, new: Any, value: Any = None) -> None:
        super().__init__(mod)
        self.var, self.new, self.value = var, new, value

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Leave the binding out; uses of the variable become uses of the new one."""
        if not binding.var.same_as(self.var):
            super().visit_var_binding_(binding)
            return
        self.set_var_remap(binding.var, self.new)
        if self.value is not None:
            value = self.visit_expr(self.value)
            self.builder_.emit_normalized(relax.VarBinding(self.new, value))


def _with_function(mod: ir.IRModule, name: str, params: list[Any], body: Any) -> ir.IRModule:
    old = mod[name]
    functions = dict(mod.functions)
    gv = mod.get_global_var(name)
    functions[gv] = relax.Function(params, body, None, old.is_pure, old.attrs)
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _cut(case: Case, name: str, var: Any, other: Any) -> Case:
    """Replace a variable by an earlier one, or (None) by a new parameter of ``main``."""
    fn, params = case.mod[name], list(case.mod[name].params)
    new = other
    if other is None:
        used = {str(p.name) for p in params}
        number = next(n for n in itertools.count() if f"cut{n}" not in used)
        new = relax.Var(f"cut{number}", var.ty)
        params.append(new)
    worker = _Replace(case.mod, var, new)
    worker.builder_.begin_scope(params)
    body = worker.visit_expr(fn.body)
    worker.builder_.end_scope()
    return replace(case, mod=_with_function(case.mod, name, params, body))


def _one_output(case: Case, number: int) -> Case:
    """Return only the tensor ``number`` of the flattened results."""
    fn = case.mod["main"]
    last = next(b for b in _bindings(fn) if b.var.same_as(fn.body.body))
    leaf = list(_leaves(last.value))[number]
    worker = _Replace(case.mod, last.var, relax.Var(last.var.name, leaf.ty), leaf)
    worker.builder_.begin_scope(fn.params)
    body = worker.visit_expr(fn.body)
    worker.builder_.end_scope()
    mod = _with_function(case.mod, "main", list(fn.params), body)
    return replace(case, mod=mod, exact=(case.exact[number],))


def _leaves(expr: Any) -> Iterator[Any]:
    if isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from _leaves(field)
    else:
        yield expr


def cleaned(case: Case) -> Case:
    """Without parameters that a cut made needlessly, and rules that match nothing."""
    fn = case.mod["main"]
    used = set(relax.analysis.free_vars(fn.body))
    params = [p for p in fn.params if p in used or not str(p.name).startswith("cut")]
    mod = _with_function(case.mod, "main", params, fn.body)
    rules = [rule for rule in case.plan["rules"] if _matches(mod, rule)]
    relax.analysis.well_formed(mod)
    return replace(case, mod=mod, plan={**case.plan, "rules": rules})


def _without_dead(case: Case) -> Case:
    """Without bindings and functions that no result needs."""
    return replace(case, mod=relax.transform.DeadCodeElimination(["main"])(case.mod))


def _without_unused(case: Case) -> Case:
    """Without parameters that no binding uses, and their rules."""
    fn = case.mod["main"]
    used = set(relax.analysis.free_vars(fn.body))
    params = [p for p in fn.params if p in used]
    return replace(case, mod=_with_function(case.mod, "main", params, fn.body))


def _matches(mod: ir.IRModule, rule: dict[str, Any]) -> bool:
    functions = {str(gv.name_hint): fn for gv, fn in _functions(mod)}
    fn = functions.get(rule.get("function", "main"))
    if fn is None:
        return False
    if "param" in rule:
        return any(str(p.name) == rule["param"] for p in fn.params)
    if "value" in rule:
        return any(str(b.var.name) == rule["value"] for b in _bindings(fn))
    calls = [b for b in _bindings(fn) if getattr(b.value, "op", None) in mod.functions]
    same = [b for b in calls if str(b.value.op.name_hint) == rule["call"]]
    return rule.get("index", 0) < len(same)

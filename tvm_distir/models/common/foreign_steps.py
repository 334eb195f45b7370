# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Recognize the weights and states of training steps that other tools wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr

from tvm_distir.core.ir import is_number, static_shape, tensor_type
from tvm_distir.core.ir.attributes import (
    IO_ATTR,
    NUM_INPUT_ATTR,
    PARAM_NAMES_ATTR,
    TRAINING_ATTR,
    num_input,
    param_names,
)
from tvm_distir.core.plan import MAIN
from tvm_distir.core.rewriting import VARIABLES
from tvm_distir.support import reachable

from .flows import Flow, Flows, bits


def noted_step(mod: ir.IRModule, gradients: Mapping[str, int] | None = None) -> ir.IRModule:
    """Annotate a training step with the results that replace parameters.

    A module is a step if it has a loss, a number, and weights: a parameter that the loss depends
    on, and a result of its type that is a sum of it and of other values, its gradient, which
    depend on all that the loss does. A parameter that the loss does not depend on, and that a
    result is computed from element by element together with a weight, is one of its states.

    Parameters
    ----------
    mod : IRModule
        The module as a frontend wrote it: plain values, results in a flat tuple.
    gradients : mapping of str to int, optional
        Results by number that are said to be the gradients of weights.

    Returns
    -------
    IRModule
        The module with the attribute ``dist.training`` of ``main``; an updated parameter is a
        weight, behind the data. ``mod`` itself is returned where it is no step.
    """
    names = [str(gv.name_hint) for gv in mod.functions]
    if MAIN not in names or not isinstance(mod[MAIN], relax.Function):
        return mod
    fn = mod[MAIN]
    if IO_ATTR in (fn.attrs or {}):  # a program of one device
        return mod
    notes = _Step(mod, fn).notes() if not gradients and _may_be_step(fn) else {}
    fields = _fields(fn) if gradients else []
    field_names = {weight: str(fields[i].name) for weight, i in (gradients or {}).items()}
    if field_names:
        notes["gradients"] = {**notes.get("gradients", {}), **field_names}
    if not notes:
        return mod
    changed = _with_data_first(fn, set(notes.get("updated", ())))
    result = ir.IRModule(dict(mod.functions), attrs=mod.attrs, global_infos=mod.global_infos)
    result.update_func(mod.get_global_var(MAIN), changed.with_attr(TRAINING_ATTR, notes))
    return result


def _fields(fn: relax.Function) -> list[Expr]:
    """Return the results of a function, or none unless they are a flat tuple."""
    body = fn.body.body
    if type(body) in VARIABLES:
        body = {b.var: b.value for block in fn.body.blocks[-1:] for b in block.bindings}.get(body)
    return list(body.fields) if isinstance(body, relax.Tuple) else []


def _kind(ty: ir.Type) -> tuple[tuple[int, ...] | None, str]:
    """Return the shape and type of a tensor, which a replacement must share."""
    tensor = tensor_type(ty)
    return static_shape(ty), "" if tensor is None else str(tensor.dtype)


def _may_be_step(fn: relax.Function) -> bool:
    """Return whether there is a number and a result of a parameter's type (a cheap test)."""
    if not all(tensor_type(param.ty) is not None for param in fn.params):
        return False
    results = [field.ty for field in _fields(fn) if tensor_type(field.ty) is not None]
    known = {_kind(p.ty) for p in fn.params if static_shape(p.ty)}
    return any(map(is_number, results)) and any(_kind(ty) in known for ty in results)


class _Step:
    """Matcher of updated parameters and results."""

    def __init__(self, mod: ir.IRModule, fn: relax.Function) -> None:
        self.fn, self.flows = fn, Flows(mod, fn)
        self.names = param_names(fn)
        self.kinds = [_kind(param.ty) for param in fn.params]
        self.fields = _fields(fn)
        bound = Counter(str(var.name) for var in self.flows.values)
        self.definitions = {
            i: self.flows.of[var][0]
            for i, var in enumerate(self.fields)
            if type(var) in VARIABLES and var in self.flows.values and bound[str(var.name)] == 1
        }

    def notes(self) -> dict[str, Any]:
        """Return the content of ``dist.training``, or nothing if the function is not a step."""
        loss = self._loss()
        if loss is None:
            return {}
        count = num_input(self.fn)
        data = range(len(self.names) if count is None else count)
        needed = self.definitions[loss].read
        matches = self._matched(
            {i: f for i, f in self.definitions.items() if i != loss and f.same}, needed
        )
        weights = {p: r for p, r in matches.items() if needed >> p & 1}
        if len(data) < len(self.names):  # the module says which are weights
            weights = {p: r for p, r in weights.items() if p not in data}
        fixed = sum(1 << p for p in weights)
        beneath = 0
        for result in weights.values():
            beneath |= self.definitions[result].beneath
        if not weights or needed & ~fixed & ~beneath or self._are_read(loss, weights):
            return {}
        states = {w: [*self._states(w, r, matches, needed)] for w, r in weights.items()}
        owned = {p for group in states.values() for p in group}
        free = [
            p
            for p in matches
            if p not in weights and p not in owned and (not self.kinds[p][0] or p not in data)
        ]
        updated_by = {
            p: matches[p] for p in sorted({*weights, *owned, *free}, key=matches.__getitem__)
        }
        gradients = {w: self._gradient(w, r, states[w], matches) for w, r in weights.items()}
        title = self.names
        return {
            "updated": {title[p]: str(self.fields[r].name) for p, r in updated_by.items()},
            "places": {title[p]: r for p, r in updated_by.items()},
            "states": {title[w]: [title[p] for p in group] for w, group in states.items() if group},
            "gradients": {title[w]: str(v.name) for w, v in gradients.items() if v is not None},
            "counters": {title[p]: 2 for p in free if not self.kinds[p][0]},
        }

    def _loss(self) -> int | None:
        """Return the number of the loss, the first scalar result that is not a counter."""
        numbers = [
            i
            for i, flow in self.definitions.items()
            if is_number(self.fields[i].ty) and flow.beneath
        ]
        return next((i for i in numbers if not self.definitions[i].same), next(iter(numbers), None))

    def _matched(self, results: Mapping[int, Flow], needed: int) -> dict[int, int]:
        """Map parameters by number to the results that replace them."""
        position_of = {i: self.flows.position_of[self.fields[i]] for i in results}
        open_ = sorted(results, key=lambda i: (results[i].same.bit_count(), position_of[i]))
        matches: dict[int, int] = {}
        for at, result in enumerate(open_):
            flow, kind = results[result], _kind(self.fields[result].ty)
            open_bits = bits(flow.same & ~needed | flow.moved & needed)
            matching = [p for p in open_bits if p not in matches and self.kinds[p] == kind]
            weights = [p for p in matching if needed >> p & 1]
            later = open_[at + 1 :]
            last = [w for w in weights if not any(results[r].moved >> w & 1 for r in later)]
            chosen = last or [p for p in matching if p not in weights] or weights
            if len(chosen) == 1:
                matches[chosen[0]] = result
        return matches

    def _are_read(self, loss: int, weights: Mapping[int, int]) -> bool:
        """Return whether the loss depends on a new weight, in which case it is not a loss."""
        forbidden = {self.fields[r] for r in weights.values()}
        return not forbidden.isdisjoint(self._before([self.fields[loss]], self.flows.reads))

    def _states(
        self, weight: int, result: int, matches: Mapping[int, int], needed: int
    ) -> Iterator[int]:
        for state, other in sorted(matches.items()):
            if needed >> state & 1 or self.kinds[state][0] != self.kinds[weight][0]:
                continue
            if not self.kinds[state][0]:
                continue
            if (
                self.definitions[result].same >> state & 1
                or self.definitions[other].same >> weight & 1
            ):
                yield state

    def _gradient(
        self, weight: int, result: int, states: list[int], matches: Mapping[int, int]
    ) -> relax.Var | None:
        """Return the only other value from which a weight and its states are updated."""
        mask = sum(1 << p for p in (weight, *states))
        flows = self.flows

        def is_updated(var: relax.Var) -> bool:
            return any(flow.same & mask for flow in flows.of[var])

        def operands(var: relax.Var) -> list[Expr]:
            return (flows.operands(var) or flows.reads(var)) if is_updated(var) else []

        updated = [self.fields[r] for r in (result, *(matches[s] for s in states))]
        above = [
            self._before([var], flows.operands)
            for var in self._before(updated, operands)
            if not is_updated(var)
            and any(flow.read for flow in flows.of[var])
            and static_shape(var.ty) == self.kinds[weight][0]
        ]
        common = set.intersection(*above) if above else ()
        return max(common, key=flows.position_of.__getitem__, default=None)

    def _before(
        self, values: list[Expr], operands: Callable[[relax.Var], list[Expr]]
    ) -> set[relax.Var]:
        """Return values and those that they depend on, given the operands of each."""
        bound = self.flows.values
        return set(reachable(values, lambda var: (x for x in operands(var) if x in bound)))


def _with_data_first(fn: relax.Function, updated: set[str]) -> relax.Function:
    """Return the function with updated parameters moved behind its data."""
    names, count = param_names(fn), num_input(fn)
    if count is None or not updated.intersection(names[:count]):
        return fn
    order = sorted(range(len(names)), key=lambda i: names[i] in updated if i < count else True)
    step = relax.Function([fn.params[i] for i in order], fn.body, fn.ret_ty, fn.is_pure, fn.attrs)
    data_count = sum(name not in updated for name in names[:count])
    return step.with_attrs(
        {NUM_INPUT_ATTR: data_count, PARAM_NAMES_ATTR: [names[i] for i in order]}
    )

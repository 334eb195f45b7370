# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Hoist the gathers of a function's parameters into a separate function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tvm import ir, relax
from tvm.relax import Binding, Var

from tvm_distir.core.analysis import dependencies
from tvm_distir.core.ir.attributes import IN_FLIGHT_ATTR, PHASE_ATTR, REPEAT_ATTR
from tvm_distir.core.ir.operators import COLLECTIVES, REDUCTIONS, is_done, started_ops
from tvm_distir.core.redistribution import local_bytes
from tvm_distir.core.rewriting import (
    make_binding,
    make_var,
    substitute,
    typed,
    variables,
    with_body,
)
from tvm_distir.core.rewriting.native import pruned

from .binding_costs import BindingCosts
from .call_sites import all_known, laid_out
from .dependence import block_nodes, peak_bytes
from .function_facts import Scan

GATHERED = "gathered"
"""The parameter by which a function gets what is gathered for it."""

_ROUNDS = 3
"""Calls in a row of which the last one is timed."""
_MOVES = frozenset(COLLECTIVES) - frozenset(REDUCTIONS)


@dataclass(frozen=True)
class HoistedGathers:
    """Function split into its gathers and the rest.

    Attributes
    ----------
    gathers : Function
        Starts what is gathered; its result is a tuple that is in flight.
    rest : Function
        The rest of the function; the value in flight is its last parameter.
    given, kept : tuple of int
        Parameters of the function that either takes, in order.
    transfer_ps : int
        The time of the transfer.
    """

    gathers: relax.Function
    rest: relax.Function
    given: tuple[int, ...]
    kept: tuple[int, ...]
    transfer_ps: int


class GatherPrologue:
    """Collectives of a function that depend only on parameters, or on layouts of them.

    Parameters
    ----------
    fn : Function
        A function of level 5 whose collectives are split, with a body of a single block.
    early : collection of int
        Parameters that are there long before it is called.
    costs : BindingCosts

    Attributes
    ----------
    starts : list of Var
        The started collectives, in the order in which they are first needed.
    """

    def __init__(self, fn: relax.Function, early: Collection[int], costs: BindingCosts) -> None:
        self.fn, self.scan = fn, Scan.of(fn)
        self.bindings = self.scan.reading.bindings
        self.costs = costs.of(self.scan.reading)
        self._ps = [self.costs.picoseconds(number) for number in range(len(self.bindings))]
        known = {fn.params[n] for n in early}
        numbers: dict[Var, int] = {}
        needed: dict[Var, int] = {}
        dones: dict[Var, Var] = {}
        started = self._started = started_ops(self.bindings)
        self._waits = {b.var: b.value.args[0] for b in self.bindings if is_done(b.value)}
        for number, binding in enumerate(self.bindings):
            value = binding.value
            if started.get(binding.var) in _MOVES and all_known(value, known):
                numbers[binding.var] = number
            elif laid_out(value, known):
                known.add(binding.var)
            elif self._waits.get(binding.var) in numbers:
                dones[binding.var] = self._waits[binding.var]
            elif dones:
                for var in variables(value):
                    if var in dones:
                        needed.setdefault(dones[var], number)
        last = len(self.bindings)
        self.starts = sorted(numbers, key=lambda var: (needed.get(var, last), numbers[var]))
        self._number = numbers

    def all_or_none(self) -> int:
        """Return the number of all starts, or 0 if a call takes longer with them hoisted."""
        return len(self.starts) if self._spent_ps(self.starts) <= self._spent_ps(()) else 0

    def fitting(self, most_bytes: int) -> int:
        """Return how many of the starts to hoist, in order of first use.

        As few as make a call shortest, of many calls in a row, when those of the next call are
        started at the beginning of this call. Their bytes stay within ``most_bytes``, those of the
        next call and what a call takes more whose own are there from its beginning.
        """
        (nodes,) = block_nodes(self.scan, self.costs)
        given_bytes = peak_bytes(nodes, range(len(nodes)))
        best, shortest_ps, size_bytes = 0, self._spent_ps(()), 0
        for count, var in enumerate(self.starts, 1):
            first = self._needed(self.starts[:count])
            order = [*first, *sorted(set(range(len(nodes))).difference(first))]
            size_bytes += local_bytes(var.ty)
            if size_bytes + peak_bytes(nodes, order) - given_bytes > most_bytes:
                break
            spent_ps = self._spent_ps(self.starts[:count])
            if spent_ps < shortest_ps:
                best, shortest_ps = count, spent_ps
        return best

    def _needed(self, out: Iterable[Var]) -> list[int]:
        """Return the numbers of some starts and of all bindings that they read."""
        needed = dependencies(out, self.bindings)
        return [number for number, binding in enumerate(self.bindings) if binding.var in needed]

    def _spent_ps(self, out: Collection[Var]) -> int:
        """Return the time of a call, of many in a row, whose starts ran before it.

        Those of the next call run from its beginning. What is still on the network at its end,
        such as a deferred reduction, delays what the next call starts.
        """
        left_ps = now_ps = late_ps = 0
        for _ in range(_ROUNDS):
            ends_ps = dict.fromkeys(out, late_ps)
            now_ps, network_free_ps = 0, left_ps + self._transfer_ps(out)
            there_ps = network_free_ps
            for binding, spent_ps in zip(self.bindings, self._ps, strict=True):
                if binding.var in self._started:
                    if binding.var not in ends_ps:
                        network_free_ps = max(network_free_ps, now_ps) + spent_ps
                        ends_ps[binding.var] = network_free_ps
                elif binding.var in self._waits:
                    now_ps = max(now_ps, ends_ps.get(self._waits[binding.var], 0))
                else:
                    now_ps += spent_ps
            left_ps, late_ps = max(network_free_ps - now_ps, 0), max(there_ps - now_ps, 0)
        return now_ps

    def _transfer_ps(self, out: Iterable[Var]) -> int:
        return sum(self._ps[self._number[var]] for var in out)

    def lifted(self, count: int) -> HoistedGathers:
        """Hoist the first starts."""
        out = self.starts[:count]
        inputs, gathers = self._gathers(out)
        rest_params, rest = self._rest(out)
        return HoistedGathers(gathers, rest, inputs, rest_params, self._transfer_ps(out))

    def _gathers(self, out: list[Var]) -> tuple[tuple[int, ...], relax.Function]:
        numbers = self._needed(out)
        read = {var for n in numbers for var in variables(self.bindings[n].value)}
        inputs = tuple(n for n, param in enumerate(self.fn.params) if param in read)
        params = [make_var(str(self.fn.params[n].name), self.fn.params[n].ty) for n in inputs]
        env: dict[Var, Var] = dict(zip((self.fn.params[n] for n in inputs), params, strict=True))
        bindings = []
        for number in numbers:
            var = self.bindings[number].var
            env[var] = make_var(str(var.name), var.ty, var not in out)
            bindings.append(make_binding(env[var], substitute(self.bindings[number].value, env)))
        result = typed(relax.Tuple([env[var] for var in out]), _tuple_type(out))
        new = with_body(self.fn, params, [relax.DataflowBlock(bindings)], result, True)
        return inputs, _noted(new, (PHASE_ATTR, REPEAT_ATTR), {"results": range(len(out))})

    def _rest(self, out: list[Var]) -> tuple[tuple[int, ...], relax.Function]:
        gathered = make_var(GATHERED, _tuple_type(out))
        field = {var: number for number, var in enumerate(out)}
        bindings = []
        for binding in self.bindings:
            if binding.var in field:
                item = relax.TupleGetItem(gathered, field[binding.var])
                binding = make_binding(binding.var, typed(item, binding.var.ty))
            bindings.append(binding)
        result = self.fn.body.body
        blocks, _ = pruned([type(self.fn.body.blocks[0])(self._late(bindings, gathered))], result)
        read = {var for block in blocks for b in block.bindings for var in variables(b.value)}
        read.update(variables(result))
        rest_params = tuple(n for n, param in enumerate(self.fn.params) if param in read)
        params = [*(self.fn.params[n] for n in rest_params), gathered]
        new = with_body(self.fn, params, blocks, result, bool(self.fn.is_pure))
        names = list(self.fn.attrs.keys()) if self.fn.attrs else []
        return rest_params, _noted(new, names, {"params": [len(rest_params)]})

    def _late(self, bindings: list[Binding], gathered: Var) -> list[Binding]:
        """Move readers of the gathered values, and free layout changes, down to their first use."""
        waits = {gathered}
        for binding, spent_ps in zip(bindings, self._ps, strict=True):
            value = binding.value
            free = laid_out(value, waits) and not spent_ps
            item = type(value) is relax.TupleGetItem and value.tuple_value in waits
            if item or free or (is_done(value) and value.args[0] in waits):
                waits.add(binding.var)
        order: list[Binding] = []
        for binding in reversed(bindings):
            position = 0
            if binding.var in waits:
                readers = (n for n, b in enumerate(order) if binding.var in variables(b.value))
                position = next(readers, len(order))
            order.insert(position, binding)
        return order


def _tuple_type(out: Iterable[Var]) -> ir.Type:
    return relax.TupleType([var.ty for var in out])


def _noted(
    fn: relax.Function, names: Collection[str], flying: Mapping[str, Iterable[int]]
) -> relax.Function:
    """Copy some attributes of a function, and record the values in flight."""
    for name in list(fn.attrs.keys()) if fn.attrs else []:
        if name not in names:
            fn = fn.without_attr(name)
    return in_flight(fn, flying)


def in_flight(fn: relax.Function, flying: Mapping[str, Iterable[int]]) -> relax.Function:
    """Add places in flight to those that a function has noted already."""
    noted: dict[str, Iterable[int]] = {}
    if fn.attrs and IN_FLIGHT_ATTR in fn.attrs:
        noted.update(fn.attrs[IN_FLIGHT_ATTR].items())
    noted.update(flying)
    return fn.with_attr(IN_FLIGHT_ATTR, {topic: list(map(int, n)) for topic, n in noted.items()})

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Assign the bindings of a stage's function to its phases."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var
from tvm.relax.utils import copy_with_new_vars

from tvm_distir.core.analysis import dependencies
from tvm_distir.core.ir import handle, unpack
from tvm_distir.core.ir.attributes import (
    ACCUMULATE_PHASE,
    BACKWARD_PHASE,
    COUNT_PHASE,
    EACH_PHASE,
    FORWARD_PHASE,
    WEIGHT_PHASE,
    phase_of,
)
from tvm_distir.core.plan import (
    ACTIVATION,
    BACKWARD,
    FORWARD,
    GRADIENT,
    STREAM,
    TOTAL,
    WEIGHT,
    StageNote,
)
from tvm_distir.core.rewriting import all_bindings, callee_of, variables


class When(enum.IntEnum):
    """Time at which a binding is run."""

    BEGIN = 0
    FORWARD = 1
    BACKWARD = 2
    WEIGHT = 3
    ACCUMULATE = 4
    END = 5


OF_UNIT = {FORWARD: When.FORWARD, BACKWARD: When.BACKWARD, WEIGHT: When.WEIGHT}
"""The phases that a unit of a schedule runs."""

_OF_FUNCTION = {
    COUNT_PHASE: When.BEGIN,
    FORWARD_PHASE: When.FORWARD,
    BACKWARD_PHASE: When.BACKWARD,
    WEIGHT_PHASE: When.WEIGHT,
    ACCUMULATE_PHASE: When.ACCUMULATE,
    EACH_PHASE: When.ACCUMULATE,
}
PASSED = (ACTIVATION, GRADIENT)
"""Kinds that are parameters and results of a stage without being updated by it."""

_OF_PARAMETER = {
    ACTIVATION: When.FORWARD,
    STREAM: When.FORWARD,
    GRADIENT: When.BACKWARD,
    TOTAL: When.END,
}


_LATER = (When.BACKWARD, When.WEIGHT, When.ACCUMULATE)
"""Phases of a micro-batch that read what its forward pass saves."""


class StageBody:
    """Bindings of a stage.

    A binding is run when the last of what it reads is there: once before all micro-batches, in one
    of the phases of each, or once behind all. What could be run before and is read behind all only,
    as a share of an old moment, is run there, so that nothing holds it meanwhile.

    Parameters
    ----------
    mod : IRModule
        The module, at level 1 or 5.
    note : StageNote
    varying : collection of str
        Inputs that are not the same for every micro-batch.
    fresh : bool
        Whether the bindings have fresh variables, with which other functions may be made of them.

    Attributes
    ----------
    params : dict of str to Var
        The parameters by what they are.
    results : dict of str to expression
        Likewise.
    bindings : dict of When to list of Binding
    when : dict of int to When
        The phase of results and of all bound variables, by their handles.
    carried : list of str
        Inputs that the forward pass of a micro-batch changes for the next micro-batch.
    counted : dict of Var to list of Binding
        Values of which those of all micro-batches are summed before the first, with the bindings
        that compute that of a micro-batch.
    each : set of Var
        Values that are passed to a separate update for every micro-batch, and not summed.
    stash : list of Var
        Values that the forward pass of a micro-batch saves for its later phases.
    runs : list of (When, bool)
        Per binding of the function, in order and with those of branches, its phase, and whether it
        is run for :attr:`counted` besides.
    """

    def __init__(
        self, mod: ir.IRModule, note: StageNote, varying: Iterable[str], fresh: bool = True
    ) -> None:
        self.note = note
        fn = copy_with_new_vars(mod[note.function]) if fresh else mod[note.function]
        self.params = dict(zip(note.params, unpack(fn.params), strict=True))
        result = fn.body.body
        bindings = list(all_bindings(fn.body))
        values = {b.var: b.value for b in bindings}
        while isinstance(result, ir.Var) and result in values and len(note.results) > 1:
            result = values[result]
        fields = unpack(result.fields) if isinstance(result, relax.Tuple) else [result]
        self.results = dict(zip(note.results, fields, strict=True))
        self.when: dict[int, When] = {}
        self.counted: dict[Var, list[Binding]] = {}
        self.each: set[Var] = set()
        varying_results = set(varying)
        for slot, var in self.params.items():
            kind = When.FORWARD if slot in varying_results else When.BEGIN
            self.when[handle(var)] = _OF_PARAMETER.get(slot.partition(":")[0], kind)
        self.carried = [slot for slot in self.results if slot in varying_results]
        self.bindings: dict[When, list[Binding]] = {when: [] for when in When}
        reads = [variables(b.value) for b in bindings]
        for binding, read in zip(bindings, reads, strict=True):
            callee = callee_of(binding.value)
            phase = "" if callee is None else phase_of(mod[callee])
            when = _OF_FUNCTION[phase] if phase else self._latest(read)
            if phase == EACH_PHASE:
                self.each.add(binding.var)
            if phase == COUNT_PHASE:
                self.counted[binding.var] = self._needed(bindings, binding)
            self.when[handle(binding.var)] = when
        self._put_off(bindings, reads)
        count_vars = {b.var for needed in self.counted.values() for b in needed}
        self.runs = [(self.when[handle(b.var)], b.var in count_vars) for b in bindings]
        read_later: dict[When, list[Expr]] = {when: [] for when in _LATER}
        for binding, (when, _), read in zip(bindings, self.runs, reads, strict=True):
            self.bindings[when].append(binding)
            if when in read_later:
                read_later[when] += read
        handed = {handle(self.params[slot]) for slot in self.carried}
        saved = {handle(v): v for when in _LATER for v in read_later[when]}
        self.stash = [
            saved[key] for key in saved if self.when.get(key) == When.FORWARD and key not in handed
        ]

    def _needed(self, bindings: Sequence[Binding], last: Binding) -> list[Binding]:
        """Return a binding behind those that depend on the micro-batch and that it reads."""
        before = bindings[: bindings.index(last)]
        before = [b for b in before if self.when[handle(b.var)] == When.FORWARD]
        needed = dependencies(variables(last.value), before)
        return [*(b for b in before if b.var in needed), last]

    def _put_off(self, bindings: Sequence[Binding], reads: Sequence[Sequence[Expr]]) -> None:
        """Move bindings that only the end reads behind all micro-batches."""
        sent = [r for slot, r in self.results.items() if slot.partition(":")[0] in PASSED]
        early = {handle(v) for result in sent for v in variables(result)}
        for binding, read in zip(reversed(bindings), reversed(reads), strict=True):
            key = handle(binding.var)
            if self.when[key] == When.BEGIN and key not in early:
                self.when[key] = When.END
            if self.when[key] != When.END:
                early.update(map(handle, read))

    def _latest(self, read: Iterable[Expr]) -> When:
        """Return when the last of what a binding reads is there."""
        known = (self.when.get(handle(v)) for v in read)
        latest = max((when for when in known if when is not None), default=When.BEGIN)
        return When.END if latest == When.ACCUMULATE else latest

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the times of modules by pass: ``layers.*.mlp.up_proj``, forward.

An op belongs to the module whose weight, gradient or optimizer state it reads or makes. Any other
op, such as attention or an activation function, belongs to the innermost module that holds all
modules right before and behind it. Numbers in a path are written ``*``, which joins layers.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm_distir.performance.program.checks import call_order
from tvm_distir.performance.program.parts import Op, Value
from tvm_distir.performance.program.program import Program
from tvm_distir.performance.program.unit_phases import unit_word
from tvm_distir.performance.traces.records import BACKWARD, FORWARD, OPTIMIZER
from tvm_distir.support import memoized

from .device_results import HOST_MODULE, ModuleTime
from .op_costs import COMPUTE, HOSTS, SLOWDOWN, OpRow
from .weight_sources import WeightSources

_PHASES = {"count": FORWARD, "rows": FORWARD, "forward": FORWARD, "gather": FORWARD}
_PHASES |= dict.fromkeys(("backward", "weight", "accumulate", "accumulate_next"), BACKWARD)
_PHASES |= {"count_next": FORWARD, "reduce": BACKWARD}
"""The pass of each phase of a stage; all others are the optimizer's."""

_GRADIENT = re.compile(r"(.+)_grad(?:_terms|_flat)?\d*")
_Key = tuple[str, tuple[int, ...]]

_LAST = ("weight", "bias")
_MOVES = ("concat", "split", "strided_slice", "astype")
"""Ops whose result is a gradient where their operand is one."""


@dataclass(frozen=True)
class _Context:
    """Module path that a function is called from, with a dot behind it, and the pass."""

    prefix: str
    phase: str


def _joined(paths: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the innermost module that holds all of these; None for none."""
    known = set(paths)
    if not known:
        return None
    first, last = min(known), max(known)  # what these share, all do
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return tuple(part for part, _ in pairs)


class ModuleNames:
    """Modules and passes of the ops of a program.

    Parameters
    ----------
    program : Program
        Its ops are grouped into kernels.
    source : Program
        The same before that: there, weights are followed to what reads them.
    """

    def __init__(self, program: Program, source: Program) -> None:
        self.program, self.source, self._weights = program, source, WeightSources(source)

    @functools.cached_property
    def _trains(self) -> bool:
        functions = self.source.functions.values()
        return any(self._is_sum(value) for fn in functions for value in fn.values)

    def of(self, row: OpRow) -> list[tuple[str, str, float]]:
        """Return the module and pass of an op, with the share of its calls in each."""
        contexts = self._contexts.get(row.function)
        if contexts is None:  # a unit of a pipeline that was written out
            return [("", _PHASES.get(unit_word(row.function.rpartition("/")[2]), OPTIMIZER), 1.0)]
        path = self._modules(row.function).get(_key(row.op), ())
        phase = self._pass(row.function, row.op)
        if row.op.kernel_class in HOSTS:
            path = (HOST_MODULE,)
        total = sum(contexts.values())
        return [
            (
                ".".join(path) if path == (HOST_MODULE,) else _pattern(context.prefix, path),
                context.phase or phase,
                count / total,
            )
            for context, count in contexts.items()
        ]

    @functools.cached_property
    def _contexts(self) -> dict[str, Counter[_Context]]:
        """Return how often each function is called in each module and pass."""
        program, contexts = self.program, defaultdict[str, Counter[_Context]](Counter)
        for entry in program.entries:
            contexts[entry.function][_Context("", "")] += 1
        for kind in program.staged.stage_kinds if program.staged is not None else ():
            for phase in kind.phases:
                word = phase.name.partition(":")[0]
                contexts[phase.function][_Context("", _PHASES.get(word, OPTIMIZER))] += 1
        for caller in reversed(call_order(program.functions)):
            if caller not in contexts:
                continue
            for op in program.functions[caller].ops:
                for callee in op.callees:
                    prefix = self._weights.path(caller, op) if op.kind == "call" else ""
                    own_phase = self._pass(caller, op)
                    for context, count in contexts[caller].items():
                        inner = _Context(context.prefix + prefix, context.phase or own_phase)
                        contexts[callee][inner] += count
        return dict(contexts)

    @memoized
    def _modules(self, function: str) -> dict[_Key, tuple[str, ...]]:
        """Return the module of each op of a function, within that of the function."""
        fn = self.program.functions[function]
        anchored = [_joined(self._anchors(function, op)) for op in fn.ops]
        before: dict[int, tuple[str, ...] | None] = {}
        behind: dict[int, list[tuple[str, ...]]] = defaultdict(list)
        sources = list(anchored)
        for number, op in enumerate(fn.ops):
            if sources[number] is None:
                sources[number] = _joined(_known(before.get(index) for index in op.inputs))
            before.update(dict.fromkeys(op.outputs, sources[number]))
        modules = dict[_Key, tuple[str, ...]]()
        for number, op in reversed([*enumerate(fn.ops)]):
            sink = anchored[number]
            if sink is None:
                sink = _joined(path for index in op.outputs for path in behind[index])
            if sink is not None:
                for index in op.inputs:
                    behind[index].append(sink)
            ends = (sources[number], sink)
            if op.kind in ("collective", "wait") and sources[number] is not None:
                ends = (sources[number], sources[number])
            path = _joined(_known(ends)) or ()
            modules[_key(op)] = modules[op.name, ()] = path
        return modules

    def _anchors(self, function: str, op: Op) -> list[tuple[str, ...]]:
        """Return the modules of the weights that an op reads or makes the gradients of."""
        fn = self.program.functions[function]
        known, names = len(self.source.functions[function].values), list[str]()
        for index in op.inputs:
            # A copy that a profile adds; a value that is made of none has no module.
            while index >= known and index in fn.makers and fn.makers[index][0].inputs:
                index = fn.makers[index][0].inputs[0]
            names.append(self._weights.of(function, index) if index < known else "")
        for index in op.outputs:
            gradient = _GRADIENT.fullmatch(fn.values[index].name)
            names.append(self._weights.plain.get(gradient[1], "") if gradient is not None else "")
        weights = [tuple(name.split(".")) for name in names if name]
        large = [weight for weight in weights if weight[-1] != "bias"] or weights
        return [weight[:-1] if weight[-1] in _LAST else weight for weight in large]

    def _pass(self, function: str, op: Op) -> str:
        """Return the pass of an op of a function that is called in none of its own."""
        known = self._passes(function)
        phases = {known[key] for key in op.outputs or (op.name,) if key in known}
        return next((phase for phase in (FORWARD, BACKWARD, OPTIMIZER) if phase in phases), FORWARD)

    @memoized
    def _passes(self, function: str) -> dict[int | str, str]:
        """Return the pass in which each value is made, by its number and by the name of its op.

        What depends on a gradient, or is read by such ops alone, is the backward pass; what depends
        on the gradient of a weight and is none itself is the optimizer.
        """
        fn = self.source.functions[function]
        late, updates, sums = set[int](), set[int](), set[int]()
        passes = dict[int | str, str]()
        for op in fn.ops:
            values = {index: self._made(function, op, index) for index in op.outputs}
            sums_made = {index for index, value in values.items() if self._is_sum(value)}
            named = bool(sums_made) or any(
                _GRADIENT.fullmatch(value.name) for value in values.values()
            )
            moves = op.kind in ("collective", "wait", "view") or op.op.endswith(_MOVES)
            reads_sum = not sums.isdisjoint(op.inputs)
            begun = self._trains and (named or not late.isdisjoint(op.inputs))
            phase = BACKWARD if begun else FORWARD
            sums |= sums_made
            if reads_sum and moves:
                sums.update(op.outputs)
            elif (reads_sum and not named) or not updates.isdisjoint(op.inputs):
                phase = OPTIMIZER
                updates.update(op.outputs)
            if phase == BACKWARD:
                late.update(op.outputs)
            passes.update(dict.fromkeys((*op.outputs, op.name), phase))
        for op in reversed(fn.ops):  # what only the backward pass reads, such as recomputation
            readers = {passes[reader.outputs[0]] for index in op.outputs
                       for reader, _ in fn.readers.get(index, ())
                       if reader.outputs and not _mixes(reader, late)}  # fmt: skip
            if readers and FORWARD not in readers and passes[op.outputs[0]] == FORWARD:
                passes.update(dict.fromkeys((*op.outputs, op.name), min(readers)))
        return passes

    def _made(self, function: str, op: Op, index: int) -> Value:
        """Return a result of an op, as the function that a call runs names it."""
        if op.kind != "call":
            return self.source.functions[function].values[index]
        callee = self.source.functions[op.callee]
        result = callee.results[op.outputs.index(index)]
        if result not in callee.makers:
            return callee.values[result]
        return self._made(op.callee, callee.makers[result][0], result)

    def _is_sum(self, value: Value) -> bool:
        """Return whether a value is the gradient of a weight."""
        gradient = _GRADIENT.fullmatch(value.name)
        return gradient is not None and gradient[1] in self._weights.plain


def _mixes(op: Op, late: set[int]) -> bool:
    """Return whether an op joins values of both passes to communicate them at once."""
    joins = op.kind == "collective" or op.op.endswith(".concat")
    return joins and 0 < len(late.intersection(op.inputs)) < len(set(op.inputs))


def _known(paths: Iterable[tuple[str, ...] | None]) -> list[tuple[str, ...]]:
    return [path for path in paths if path is not None]


def _key(op: Op) -> _Key:
    """Return what an op is known by within its function; delays are known by the name alone."""
    return op.name, () if op.kind == SLOWDOWN else op.outputs


def _pattern(prefix: str, path: Sequence[str]) -> str:
    """Return a path in which numbers are ``*``."""
    parts = [part for part in prefix.split(".") if part]
    return ".".join("*" if part.isdigit() else part for part in (*parts, *path))


def module_times(
    names: ModuleNames, rows: Sequence[OpRow], counts: Sequence[int], slowed: float
) -> tuple[ModuleTime, ...]:
    """Return the times of modules by pass, in order of their first op.

    Parameters
    ----------
    names : ModuleNames
    rows : sequence of OpRow
        The ops that a device runs, in program order.
    counts : sequence of int
        How often it runs each.
    slowed : float
        The share of the delays beside collectives by which kernels take longer.
    """
    sums: dict[tuple[str, str], list[float]] = {}
    for row, count in zip(rows, counts, strict=True):
        spent_ps = count * row.duration_ps * (slowed if row.op.kind == SLOWDOWN else 1.0)
        computes = row.stream == COMPUTE
        for module, phase, share in names.of(row):
            entry = sums.setdefault((module, phase), [0.0, 0.0, 0.0])
            entry[not computes] += share * spent_ps
            entry[2] += share * count * row.op.flops
    return tuple(
        ModuleTime(module, phase, compute * 1e-12, comm * 1e-12, round(flops))
        for (module, phase), (compute, comm, flops) in sums.items()
    )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run ranks and the reference on the same inputs, and compare their outputs."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir.operators import LOCAL_OPS, dist_op_name
from tvm_distir.core.ops import VIEWS
from tvm_distir.core.rewriting import op_name, variables
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import DistIRError

from .alignment import TOLERANCE, Aligner, State
from .placing import Sharding, coordinates, holds_parts, inferred_shardings, shard
from .repairs import ValueChange, changed
from .traced_module import WIDE, Code, Feeds, TracedModule, Values

MOST_TRIES = 150
_ROUNDING = 1e-15
GRADIENT = "grad:"


@dataclass(frozen=True)
class WrongOutput:
    """An output that is not what it must be.

    Attributes
    ----------
    family : RankFamily
        Ranks that have it.
    name : str
    state : State or None
        None where it stands for no value of the reference.
    misplaced : str
        How it is sharded otherwise than its parameter, in words.
    """

    family: RankFamily
    name: str
    state: State | None
    misplaced: str = ""


@dataclass(frozen=True, eq=False)
class RankFamily:
    """Codes of the same ops.

    Attributes
    ----------
    codes : list of Code
    number : int
    """

    codes: list[Code]
    number: int

    @functools.cached_property
    def ranks(self) -> list[int]:
        """Return all their ranks, sorted."""
        return sorted(rank for code in self.codes for rank in code.ranks)

    @functools.cached_property
    def values(self) -> dict[str, relax.Expr]:
        """Return what each name is bound to."""
        return {str(b.var.name): b.value for b in self.codes[0].bindings}

    @functools.cached_property
    def order(self) -> dict[str, int]:
        """Return the position of each value."""
        return {name: number for number, name in enumerate(self.values)}

    @functools.cached_property
    def operands(self) -> dict[str, list[str]]:
        """Return the tensors that each value reads, through tuples."""
        listed: dict[str, list[str]] = {}
        tuples = set()
        for binding in self.codes[0].bindings:
            names = [str(v.name) for v in variables(binding.value)]
            flat = [n for name in names for n in (listed[name] if name in tuples else [name])]
            name = str(binding.var.name)
            listed[name] = list(dict.fromkeys(flat))
            if not isinstance(binding.var.ty, relax.TensorType):
                tuples.add(name)
        return listed

    def output(self, name: str) -> str:
        """Return the name of the value that an output is; empty for a constant."""
        value = self.codes[0].outputs[name]
        return str(value.name) if isinstance(value, relax.Var) else ""

    def is_collective(self, name: str) -> bool:
        """Return whether ranks communicate to compute a value."""
        value = self.values.get(name)
        op = dist_op_name(value) if isinstance(value, ir.Call) else None
        return op is not None and op not in LOCAL_OPS and op != "send"

    def operation(self, name: str) -> str:
        """Return the op of a value."""
        value = self.values.get(name)
        return "input" if value is None else op_name(value).removeprefix("relax.")

    def line(self, name: str) -> str:
        """Return the line of code and the module of a value, or the next one that has them."""
        lines = self.codes[0].lines
        names = list(self.order)[self.order.get(name, 0) :]
        return next((lines[n] for n in [name, *names] if lines.get(n)), "")


def families_of(module: TracedModule) -> list[RankFamily]:
    """Return the groups of codes of the same ops."""
    return [RankFamily(codes, number) for number, codes in enumerate(module.families())]


Patch = Mapping[tuple[int, str], ValueChange]
"""Changes by the number of a family and the name of a value."""


@dataclass
class RankComparison:
    """Ranks and reference with inputs.

    Attributes
    ----------
    module, reference : TracedModule
    inputs : dict of str to array
        Whole inputs.
    hints : mapping of str to mapping of str to int
        Shardings of inputs where shapes leave a choice.
    micro_batches : sequence of int
    """

    module: TracedModule
    reference: TracedModule
    inputs: dict[str, Array]
    hints: Mapping[str, Mapping[str, int]]
    micro_batches: Sequence[int] = ()
    placements: dict[str, Sharding] = field(default_factory=dict)
    tries: int = 0

    def __post_init__(self) -> None:
        self.axes = self.module.axes
        self.at = coordinates(self.axes)
        self.families = families_of(self.module)
        self.feeds = self._feeds()
        self._states: dict[tuple[int, str], State | None] = {}

    def _feeds(self) -> Feeds:
        feeds: dict[int, dict[str, Array]] = {}
        for code in self.module.codes:  # stages may hold an input in different parts
            complete = self.reference.codes[0].inputs
            shardings = inferred_shardings(code.inputs, complete, self.axes, self.hints)
            self.placements |= shardings
            for rank in code.ranks:
                feeds[rank] = {
                    name: shard(self.inputs[name], sharding, self.axes, self.at[rank])
                    for name, sharding in shardings.items()
                }
        return feeds

    @functools.cached_property
    def expected(self) -> Values:
        """Return all values of the reference."""
        return self.reference.run({0: self.inputs}, every=True)

    @functools.cached_property
    def noise(self) -> float:
        """Return the size of an output that is zero up to rounding, beside the greatest one."""
        outputs = [v for v in self.expected.outputs[0].values() if v.dtype.kind == "f"]
        return _ROUNDING * max(float(np.abs(v).max(initial=0)) for v in outputs or [np.zeros(1)])

    @functools.cached_property
    def computed(self) -> Values:
        """Return all values of all ranks."""
        return self.module.run(self.feeds, every=True)

    @functools.cached_property
    def _aligner(self) -> Aligner:
        known = self.expected.values[0]
        code = self.reference.codes[0]
        views = {str(b.var.name) for b in code.bindings if op_name(b.value) in VIEWS}
        ordered = [(n, v) for n, v in known.items() if n not in views]
        ordered += [(n, v) for n, v in known.items() if n in views]
        for count in self.micro_batches:
            ordered += [
                (f"{name}[micro-batch {i}]", part)
                for name, value in list(ordered)
                if value.ndim and value.shape[0] % count == 0
                for i, part in enumerate(np.split(value, count))
            ]
        return Aligner(ordered, self.axes, self.micro_batches)

    def _gathered(
        self, ranks: Sequence[int], get: Callable[[int], Array]
    ) -> tuple[dict[tuple[tuple[str, int], ...], Array], dict[str, int]]:
        axes = {
            axis: size
            for axis, size in self.axes.items()
            if len({self.at[rank][axis] for rank in ranks}) > 1
        }
        return {tuple((a, self.at[rank][a]) for a in axes): get(rank) for rank in ranks}, axes

    def state(self, family: RankFamily, name: str) -> State | None:
        """Return what a value of a family stands for."""
        key = family.number, name
        if key not in self._states:
            known = self.computed.values
            listed = None
            if all(name in known[rank] for rank in family.ranks):
                listed = self._aligner.find(
                    *self._gathered(family.ranks, lambda rank: known[rank][name])
                )
            self._states[key] = listed
        return self._states[key]

    def wrong_outputs(self, results: Mapping[int, Mapping[str, Array]]) -> list[WrongOutput]:
        """Return the outputs of ranks that are not those of the reference."""
        wrong = []
        for name, want in self.expected.outputs[0].items():
            for family in self._joined([f for f in self.families if name in f.codes[0].outputs]):
                fault = self._output(family, name, want, results)
                if fault is not None:
                    wrong.append(fault)
        return wrong

    def _joined(self, holders: list[RankFamily]) -> list[RankFamily]:
        """Join families whose ranks together are a block of the mesh: they hold one value."""
        ranks = [rank for family in holders for rank in family.ranks]
        sizes = [len({self.at[rank][axis] for rank in ranks}) for axis in self.axes]
        if len(holders) > 1 and math.prod(sizes) == len(ranks):
            codes = [code for family in holders for code in family.codes]
            return [RankFamily(codes, holders[0].number)]
        return holders

    def _output(
        self, family: RankFamily, name: str, want: Array, results: Mapping[int, Mapping[str, Array]]
    ) -> WrongOutput | None:
        values, axes = self._gathered(family.ranks, lambda rank: results[rank][name])
        declared = self.module.output_shardings.get(name)
        tolerance = max(float(np.abs(want).max(initial=0)) * TOLERANCE, self.noise)
        if declared is not None and holds_parts(values, want, declared, self.axes, tolerance):
            return None
        aligner = Aligner([(name, want.astype(WIDE))], self.axes, self.micro_batches)
        state = aligner.find({at: value.astype(WIDE) for at, value in values.items()}, axes)
        if all(np.abs(v).max(initial=0) <= self.noise for v in (want, *values.values())):
            return None
        if want.dtype.kind != "f" and declared is None:
            sharded = state is not None and state.is_right and bool(state.sharding)
            equal = sharded or all(np.array_equal(v, want) for v in values.values())
            return None if equal else WrongOutput(family, name, None)
        is_gradient = name.startswith(GRADIENT)
        may_be_mean = want.ndim == 0 and not is_gradient and declared is None
        if may_be_mean and np.isclose(np.mean(list(values.values())), want, 1e-6, 0):
            return None
        placed = self.placements.get(name.removeprefix(GRADIENT)) if is_gradient else declared
        misplaced = ""
        if state is not None and placed is not None:
            here = {axis: dim for axis, dim in placed.items() if axis in axes}
            if state.sharding != here or declared is not None:
                why = "its parameter is" if is_gradient else "the module says"
                misplaced = f"{state.sharding or 'replicated'} where {why} {here or 'replicated'}"
        if state is not None and state.is_right and state.reference == name and not misplaced:
            return None
        return WrongOutput(family, name, state, misplaced)

    def is_repaired(self, patch: Patch) -> bool:
        """Return whether all outputs are right with some changes; False after too many tries."""
        self.tries += 1
        if self.tries > MOST_TRIES:
            return False
        try:
            return not self.wrong_outputs(self.module.run(self.feeds, self.patched(patch)).outputs)
        except DistIRError:
            return False

    def with_patch(self, patch: Patch) -> RankComparison:
        """Return the comparison of the ranks with some changes."""
        module = copy.copy(self.module)
        module.codes = self.patched(patch)
        after = replace(self, module=module)
        after.expected, after._aligner = self.expected, self._aligner
        return after

    def patched(self, patch: Patch) -> list[Code]:
        """Return the codes with some changes."""
        codes = []
        for family in self.families:
            changes = {name: change for (f, name), change in patch.items() if f == family.number}
            codes += changed(family.codes, changes, self.module.mesh)
        return codes

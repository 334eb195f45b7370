# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Prove by sharding rules, without values, that ranks compute what the reference computes."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_distir.core.rewriting import op_name

from .alignment import MAX, REPLICATED, SHARDED, SUM, Layout, State
from .comparison import GRADIENT
from .layout_rules import COPIES, Layouts
from .placing import Sharding, inferred_shardings
from .report import EQUAL, NOT_CHECKED, RULES, UNPROVED, WRONG, CheckReport
from .traced_module import TracedModule
from .value_terms import Multiple, ReferenceTerms, Uniform, Value, Values, rounded, shape_of
from .value_walk import RankValueWalk, ReferenceValueWalk, names_of


def prove(
    module: TracedModule,
    reference: TracedModule,
    hints: Mapping[str, Mapping[str, int]],
    seed: int,
) -> CheckReport:
    """Return the verdict of the rules; see :func:`.checking.check`."""
    placements = _placements(module, reference, hints)
    if len(module.codes) == 1:
        return ProgramProof(module, reference, placements).report(seed)
    problem = f"not proved: the ranks run {len(module.codes)} programs, and the rules know one"
    names = tuple(reference.output_names)
    return CheckReport(
        UNPROVED, dict(module.axes), seed, names, names, placements, problem=problem, method=RULES
    )


def proof_of(
    module: TracedModule, reference: TracedModule, hints: Mapping[str, Mapping[str, int]]
) -> ProgramProof | None:
    """Return what rules know of the values of ranks; None where ranks run several programs."""
    placements = _placements(module, reference, hints)
    return ProgramProof(module, reference, placements) if len(module.codes) == 1 else None


def _placements(
    module: TracedModule, reference: TracedModule, hints: Mapping[str, Mapping[str, int]]
) -> dict[str, Sharding]:
    """Return the shardings of all inputs, from the shapes of ranks and of the reference."""
    complete, placements = reference.codes[0].inputs, dict[str, Sharding]()
    for code in module.codes:
        placements |= inferred_shardings(code.inputs, complete, module.axes, hints)
    return placements


class ProgramProof:
    """Ranks of a single role beside their reference, by rules.

    Parameters
    ----------
    module, reference : TracedModule
    placements : mapping of str to Sharding
        Of the inputs.
    """

    def __init__(
        self, module: TracedModule, reference: TracedModule, placements: Mapping[str, Sharding]
    ) -> None:
        self.axes, self.placements = module.axes, dict(placements)
        self.output_shardings = module.output_shardings
        self.code, single = module.codes[0], reference.codes[0]
        self.terms = ReferenceTerms(reference.mod)
        complete, parts = {}, {}
        for name, var in single.inputs.items():
            indices = "" if str(var.ty.dtype).startswith("float") else name
            complete[name] = Multiple(self.terms.added(name, shape_of(var.ty), None, indices))
            parts[name] = Multiple(
                complete[name].term, 1.0, self._layouts(placements.get(name, {}))
            )
        self.reference = ReferenceValueWalk(self.terms, reference.mod, complete)
        self.reference.read(single)
        self.ranks = RankValueWalk(self.terms, module, parts)
        self.ranks.read(self.code)
        self.expected = {n: self.reference.value(v) for n, v in single.outputs.items()}

    def _layouts(self, sharding: Sharding) -> Layouts:
        listed, counts = dict.fromkeys(self.axes, COPIES), dict[int, int]()
        for axis, dim in sharding.items():
            listed[axis] = Layout(SHARDED, dim, counts.get(dim, 1))
            counts[dim] = counts.get(dim, 1) * self.axes[axis]
        return tuple(listed.values())

    def report(self, seed: int) -> CheckReport:
        """Return the verdict: wrong where an output is known to be another value."""
        names = tuple(self.expected)
        values = {n: self.ranks.value(v) for n, v in self.code.outputs.items()}
        open_ones = [n for n in names if values[n] is None or self.expected[n] is None]
        wrong = [n for n in names if n not in open_ones and not self._is_right(n, values[n])]
        verdict, first, problem = EQUAL, "", ""
        if wrong:
            verdict, first, problem = WRONG, wrong[0], self._fault(wrong[0], values[wrong[0]])
        elif open_ones:
            verdict, (first, problem) = UNPROVED, self._open(open_ones[0])
        assumed = sorted(self.reference.assumed | self.ranks.assumed)
        limits = [f"negative elements of {', '.join(assumed)}"] if assumed else []
        line = self.code.lines.get(first, "")
        return CheckReport(
            verdict, dict(self.axes), seed, names, tuple(wrong or open_ones),
            {**self.placements, **self.output_shardings},
            first, "", line, problem, not_checked=(*limits, *NOT_CHECKED[1:3]), method=RULES,
        )  # fmt: skip

    def _is_right(self, name: str, value: Value | Values) -> bool:
        want = self.expected[name]
        if not isinstance(value, Multiple) or not isinstance(want, Multiple):
            return bool(value == want)
        scale, layouts = value.scale / want.scale, value.layouts
        is_gradient = name.startswith(GRADIENT)
        declared = self.output_shardings.get(name)
        is_scalar = not self.terms.terms[want.term].shape
        if not is_gradient and declared is None and is_scalar:  # the mean of the ranks'
            for layout, size in zip(layouts, self.axes.values()):
                scale /= size if layout.kind == SUM else 1
            layouts = tuple(COPIES if x.kind == SUM else x for x in layouts)
        if value.term != want.term or rounded(scale) != 1:
            return False
        placed = self._placed(name)
        if placed is not None:
            return layouts == self._layouts(placed)
        return all(x.kind in (REPLICATED, SHARDED) for x in layouts)

    def _placed(self, name: str) -> Sharding | None:
        """Return how an output must be sharded, if that is known."""
        if name.startswith(GRADIENT):
            return self.placements.get(name.removeprefix(GRADIENT))
        return self.output_shardings.get(name)

    def _text(self, value: Value | Values) -> str:
        state = self._state(value)
        return "unknown" if state is None else state.text()

    def state(self, name: str) -> State | None:
        """Return what a value of a rank stands for, where rules know it."""
        return self._state(self.ranks.values.get(name))

    def _state(self, value: Value | Values) -> State | None:
        if isinstance(value, Uniform):
            return State(f"everywhere {value.value:g}", dict.fromkeys(self.axes, COPIES))
        if not isinstance(value, Multiple):
            return None
        layouts = dict(zip(self.axes, value.layouts))
        scale = rounded(value.scale / self.terms.scales.get(value.term, 1.0))
        return State(self.terms.terms[value.term].name, layouts, scale)

    def _fault(self, name: str, value: Value | Values) -> str:
        want = self.expected[name]
        text = f"{name} is {self._text(value)}, not {self._text(want)}"
        if not isinstance(value, Multiple):
            return text
        axes = [a for a, x in zip(self.axes, value.layouts) if x.kind in (SUM, MAX)]
        if axes:
            text += f": a reduction over {'+'.join(axes)} is missing"
        elif isinstance(want, Multiple) and value.term == want.term:
            scale = rounded(value.scale / want.scale)
            placed = f"must be sharded {self._placed(name) or ''}"
            text += f": {f'scaled by {scale:g}' if scale != 1 else placed}"
        return text

    def _open(self, name: str) -> tuple[str, str]:
        """Return the first value before an output that the rules do not know, and why."""
        first = self.ranks.unknown.get(str(getattr(self.code.outputs[name], "name", "")), "")
        for binding in self.code.bindings:
            if str(binding.var.name) == first:
                states = [
                    f"{n} = {self._text(self.ranks.values[n])}" for n in names_of(binding.value)
                ]
                op = op_name(binding.value)
                return first, f"not proved at full size: {first} ({op}) [{'; '.join(states)}]"
        return name, f"not proved at full size: the reference's {name}"

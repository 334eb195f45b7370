# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Follow a wrong output back to the first wrong value, and propose repairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .alignment import MAX, State
from .comparison import RankComparison, WrongOutput
from .output_walk import Finding, OutputWalk, Repairs
from .repairs import REDUCE, SCALE, ValueChange, group_size

_MOST_FINDINGS = 12


def findings(compared: RankComparison, wrong: Sequence[WrongOutput]) -> list[Finding]:
    """Return what may be wrong, the likeliest first; at least one finding."""
    listed: list[Finding] = []
    origins = [_Blame(compared, output, wrong) for output in wrong]
    for origin in origins:
        listed += origin.findings()
    for origin in origins:  # buffers of several values stand for none: repairs alone tell
        listed += origin.collectives() if listed else []
    unique = {(f.text, tuple(text for text, _ in f.repairs)): f for f in listed}
    if unique:
        return list(unique.values())
    names = ", ".join(dict.fromkeys(w.name for w in wrong))
    first = wrong[0]
    text = f"the outputs {names} stand for no value of the reference"
    return [Finding(first.family, first.family.output(first.name), text, [])]


class _Blame(OutputWalk):
    """Looks for the origin of a wrong output."""

    def findings(self) -> list[Finding]:
        state = self.at_output
        if not self.value:
            return []
        if state is None:
            return self.unknown()
        listed = self.collective_finding(state)
        if state.partial:
            listed.append(self.missing_reduction(state))
        if state.scale != 1:
            listed.append(self.scaled(state))
        if self.misplaced:
            text = f"{self.name} is sharded {self.misplaced}"
            last = self.last_collective()
            listed.append(self.finding(self.value, text, self.regroupings(last) if last else []))
        return listed

    def collective_finding(self, state: State) -> list[Finding]:
        """Return the fault of a reduction along axes over which its operand is replicated."""
        name = self.last_collective()
        if name is None or state.is_right:
            return []
        used = self.collective_axes(name)
        operand = next(iter(self.known_before(name)), None)
        if operand is None or "reduce" not in self.family.operation(name):
            return []
        partial = operand[1].partial
        extra = [axis for axis in used if axis not in partial]
        if not extra:
            return self.not_averaged(name, used, operand[1], state)
        text = f"{self.name}: {name} reduces over {'+'.join(used)} a value that is"
        text += f" partial over {'+'.join(partial)} and" if partial else ""
        text += f" replicated over {'+'.join(extra)}: scaled by {self.size(extra)}"
        if state.partial:
            text += f"; it stays partial over {'+'.join(state.partial)}"
        repairs = self.regroupings(name)
        if not partial:
            repairs += self.removals(name)
        return [self.finding(name, text, repairs)]

    def not_averaged(
        self, name: str, used: Sequence[str], operand: State, state: State
    ) -> list[Finding]:
        """Return the fault of a sum of gradients of means, which must be averaged."""
        size, over = self.size(used), "+".join(used)
        if state.partial or not state.scale == operand.scale == size:
            return []
        text = f"{self.name} is scaled by {size}: {name} sums over {over} what is partial over "
        text += f"{over} and times {size} on each rank, as the gradient of a mean: it must average"
        change = ValueChange(SCALE, factor=1 / size)
        repairs = [(f"average over {over} in {name}", self.patch(name, change))]
        return [self.finding(name, text, repairs)]

    def missing_reduction(self, state: State) -> Finding:
        axes = "+".join(state.partial)
        origin = self.origin(state.partial[0])
        words = state.text().split(" ", 1)[1].strip("()")
        text = (
            f"{self.name} is {words}, where it must not be partial: a reduction over {axes} is "
            f"missing (partial since {origin}, {self.family.operation(origin)})"
        )
        numbers, size = self.numbers(state.partial), self.size(state.partial)
        repairs: Repairs = []
        for word, factor in (("sum", 1.0), ("average", 1.0 / size)):
            change = ValueChange(REDUCE, numbers, factor=factor)
            repairs.append((f"{word} {self.name} over {axes}", self.everywhere(self.name, change)))
        repairs += self.multiplications(origin, float(size))
        return self.finding(origin, text, repairs)

    def scaled(self, state: State) -> Finding:
        name, before, after = self.first_scaled(state)
        why = f": {before.text()} -> {after.text()}" if before is not None else ""
        text = (
            f"{self.name} is scaled by {state.scale:g}: reduced where it is replicated, or a "
            f"factor applied twice or never, at {name} ({self.family.operation(name)}){why}"
        )
        factor = 1 / state.scale
        outputs: dict[tuple[int, str], ValueChange] = {}
        for other in self.every:
            if other.state is not None and other.state.scale != 1:
                change = ValueChange(SCALE, factor=1 / other.state.scale)
                outputs.update(self.everywhere(other.name, change))
        repairs: Repairs = []
        if self.family.is_collective(name):
            repairs += self.regroupings(name) + self.removals(name)
        repairs += self.multiplications(name, factor)
        repairs.append((f"multiply the outputs by {factor:g}", outputs))
        return self.finding(name, text, repairs)

    def first_scaled(self, state: State) -> tuple[str, State | None, State]:
        """Return where the factor of the output arose: a collective if one of these did it."""
        changes: list[tuple[str, State, State]] = []
        name, here, seen = self.value, state, set[str]()
        while name and name not in seen:
            seen.add(name)
            known = self.known_before(name)
            chosen = next((k for k in known if k[1].scale != 1), known[0] if known else None)
            if chosen is None:
                break
            averaged = chosen[1].scale == self.size(chosen[1].partial) * here.scale
            if here.scale != chosen[1].scale and not averaged:
                changes.append((name, chosen[1], here))
            name, here = chosen
        collectives = [c for c in changes if self.family.is_collective(c[0])]
        if collectives or changes:
            return (collectives or changes)[0]
        return name if here.scale != 1 else self.value, None, state

    def unknown(self) -> list[Finding]:
        """Return findings of an output that stands for no value of the reference."""
        none = self.before(lambda name: self.state(name) is None) or self.before(self.is_block)
        entries = [n for n in none if self.known_operands(n)] or none
        listed = [f for name in entries for f in self.scaled_operands(name)]
        for name in sorted(entries, key=lambda n: (self.rank(n), self.family.order[n])):
            if len(listed) >= _MOST_FINDINGS:
                break
            listed.append(self.entry(name))
        return listed

    def collectives(self) -> Iterator[Finding]:
        """Yield the collectives before the output, with another group, factor or none of them."""
        for name in self.before(lambda name: True):
            if not self.family.is_collective(name):
                continue
            kind = self.family.operation(name)
            repairs = self.removals(name)
            factors = {2.0, 0.5}
            if kind != "dist.recv":
                repairs += self.regroupings(name)
                size = group_size(self.family.values[name])
                factors |= {float(size), 1 / size}
            for factor in sorted(factors):
                repairs += self.multiplications(name, factor)
            text = f"a factor or the group of {name} ({kind}) is wrong"
            yield Finding(self.family, name, text, repairs, together=False)

    def scaled_operands(self, name: str) -> Iterator[Finding]:
        """Yield operands that are scaled, at the values where their factors arose."""
        for operand, state in self.known_operands(name):
            while state.scale != 1 and not self.is_local_mean(state):
                known = self.known_operands(operand)
                before = known[0] if known else None
                if before is None or before[1].scale != state.scale:
                    origin = f", from {before[1].text()}" if before else ""
                    kind, factor = self.family.operation(operand), 1 / state.scale
                    text = (
                        f"{operand} ({kind}) is {state.text()}: scaled by {state.scale:g}{origin}"
                    )
                    repairs = self.removals(operand)
                    if repairs:
                        repairs = self.regroupings(operand) + repairs
                    repairs += self.multiplications(operand, factor)
                    yield self.finding(operand, text, repairs)
                    break
                operand, state = before

    def entry(self, name: str) -> Finding:
        """Return the finding of a value that is unknown although an operand is known."""
        known, kind = self.known_operands(name), self.family.operation(name)
        partial = [(n, s) for n, s in known if s.partial]
        states = "; ".join(f"{n} = {s.text()}" for n, s in known)
        repairs: Repairs = []
        if self.family.is_collective(name):
            text = f"{name} ({kind}) gives no value of the reference: wrong group or operation"
            repairs = self.removals(name) + self.regroupings(name)
        elif partial and kind != "concat":
            operand, state = partial[0]
            axes = "+".join(state.partial)
            text = (
                f"{operand} is partial over {axes} and reaches {name} ({kind}): a reduction over "
            )
            text += f"{axes} is missing"
            for operand, state in partial:
                op = "max" if any(x.kind == MAX for x in state.layouts.values()) else "sum"
                change = ValueChange(REDUCE, self.numbers(state.partial), op)
                over = "+".join(state.partial)
                repairs.append((f"{op} {operand} over {over}", self.patch(operand, change)))
                repairs += self.regroupings(operand) if self.family.is_collective(operand) else []
            factor = 1 / self.size(partial[0][1].partial)
            for operand, state in known:
                if not state.partial:
                    change = ValueChange(SCALE, factor=factor)
                    words = f"add {operand} after the reduction, or multiply it by {factor:g}"
                    repairs.append((words, self.patch(operand, change)))
        else:
            text = f"{name} ({kind}) is the first value that stands for none of the reference"
        repairs += self.reductions(name)
        for operand, _ in known:
            repairs += self.reductions(operand)
        return self.finding(name, f"{text} [{states}]" if states else text, repairs)

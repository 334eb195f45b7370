# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse the recomputation policies of a training step, by function and call.

::

    rules = policy | runs | NAME "=" runs ("," NAME "=" runs)*
    runs  = run ("+" run)*          the calls of main, in order; the last run holds for all further
    run   = policy ["*" count]
    policy = "none" | "megatron" | "attention" | "core" | "selective" | "alternate" | "full"
           | "checkpoint" | "cut:" share
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir

from tvm_distir.core.ir.attributes.readers import training_notes
from tvm_distir.core.ir.types import relax_functions
from tvm_distir.support import DistIRError, PlanError, nearest, parse_float, parse_int, shortened

from .name_patterns import match_name

NONE, ATTENTION, CORE, SELECTIVE, FULL = "none", "attention", "core", "selective", "full"
MEGATRON, CHECKPOINT, ALTERNATE = "megatron", "checkpoint", "alternate"
NAMED = (NONE, MEGATRON, ATTENTION, CORE, SELECTIVE, ALTERNATE, FULL, CHECKPOINT)

CUT = "cut:"
"""Begins the policy that keeps at most a share of the bytes that ``none`` keeps."""

Refuse = Callable[[str, str], DistIRError]
"""A function from a fault and a remedy to the error."""


@dataclass(frozen=True)
class Runs:
    """The recomputation policies of the calls of a function.

    Attributes
    ----------
    parts : tuple of (str, int)
        Policies, and how many calls in a row each has; the last has all further calls too.
    """

    parts: tuple[tuple[str, int], ...]

    def of_call(self, number: int) -> str:
        """Return the policy of a call of ``main``, counted from 0."""
        for policy, count in self.parts:
            if number < count:
                return policy
            number -= count
        return self.parts[-1][0]

    @property
    def text(self) -> str:
        """Return the text form of the policies."""
        if len(self.parts) == 1:
            return self.parts[0][0]
        return "+".join(f"{policy}*{count}" for policy, count in self.parts)

    @staticmethod
    def of(policies: Sequence[str]) -> Runs:
        """Write the policies of calls, a policy for each, as runs."""
        parts: list[tuple[str, int]] = []
        for policy in policies:
            count = parts.pop()[1] if parts and parts[-1][0] == policy else 0
            parts.append((policy, count + 1))
        return Runs(tuple(parts))

    def same(self, other: Runs) -> bool:
        """Return whether both have the same policy for every call."""
        ends = {0, *self._ends(), *other._ends()}
        return all(self.of_call(end) == other.of_call(end) for end in ends)

    def _ends(self) -> Iterable[int]:
        """Return the numbers of the first calls after each run."""
        return itertools.accumulate(count for _, count in self.parts)


@dataclass(frozen=True)
class Recomputation:
    """The recomputation policies of the functions of a training step.

    Attributes
    ----------
    rules : tuple of (str, Runs)
        The policies by patterns of names; of several that match, the last counts, and functions
        that match none save all values.
    """

    rules: tuple[tuple[str, Runs], ...] = ()

    @staticmethod
    def read(policies: str | Mapping[str, str], refuse: Refuse) -> Recomputation:
        """Read the text, or runs by patterns of names.

        Raises
        ------
        DistIRError
            What ``refuse`` makes, for what cannot be read.
        """
        if isinstance(policies, str):
            pairs = [part.rpartition("=")[::2] for part in policies.split(",")]
            pairs = pairs if "=" in policies else [("*", policies)]
        else:
            pairs = [(name, runs) for name, runs in policies.items()]
        return Recomputation(tuple((n.strip(), read_runs(runs, refuse)) for n, runs in pairs))

    def of(self, name: str) -> Runs:
        """Return the policies of the calls of a function."""
        matches = [runs for pattern, runs in self.rules if match_name(pattern, name)]
        return matches[-1] if matches else Runs(((NONE, 1),))

    def unused(self, names: Sequence[str]) -> list[str]:
        """Return the patterns that fit none of some functions."""
        return [
            pattern
            for pattern, _ in self.rules
            if pattern != "*" and not any(match_name(pattern, name) for name in names)
        ]


def read_runs(text: str, refuse: Refuse) -> Runs:
    """Read ``full*4+none`` (the error that ``refuse`` makes where it is none)."""
    parts = []
    for part in text.split("+"):
        policy, star, times = (word.strip() for word in part.partition("*"))
        count = parse_int(times, 1) if star else 1
        if count is None:
            raise refuse(
                f'recompute has "{shortened(part)}"', "Write the number of calls: full*4+none."
            )
        if policy not in NAMED and share_of(policy) is None:
            raise refuse(
                f'recompute is "{shortened(policy)}"', nearest(policy, (*NAMED, "cut:0.5"))
            )
        parts.append((policy, count))
    return Runs(tuple(parts))


def share_of(policy: str) -> float | None:
    """Return the memory fraction of a policy, in [0, 1]; None where it has none."""
    share = parse_float(policy.removeprefix(CUT)) if policy.startswith(CUT) else math.nan
    return share if 0 <= share <= 1 else None


def read_plan_policies(policies: Mapping[str, str]) -> Recomputation:
    """Read the policies of a plan (PlanError DIST0221)."""
    return Recomputation.read(
        policies,
        lambda problem, remedy: PlanError("DIST0221", problem, location="recompute", remedy=remedy),
    )


def policies_of(mod: ir.IRModule) -> dict[str, str]:
    """Return the recomputation policies of a training step by function; empty for other modules."""
    return {name: str(text) for name, text in _notes(mod, "recompute").items()}


def _notes(mod: ir.IRModule, key: str) -> Mapping[str, object]:
    notes: dict[str, object] = {}
    for _, fn in sorted(relax_functions(mod), key=lambda item: str(item[0].name_hint)):
        notes.update(training_notes(fn, key))
    return notes


def check_policies(policies: Mapping[str, str], mod: ir.IRModule) -> None:
    """Refuse a training step whose recomputation differs from the plan.

    Raises
    ------
    PlanError
        DIST0229.
    """
    if not policies or not _notes(mod, "updated"):
        return
    expected, recorded = read_plan_policies(policies), read_plan_policies(policies_of(mod))
    names = [name for name, _ in recorded.rules]
    other = [name for name in names if not expected.of(name).same(recorded.of(name))]
    for pattern, runs in expected.rules:
        if runs.text != NONE and not any(match_name(pattern, name) for name in names):
            other.append(pattern)
    if other:
        raise PlanError(
            "DIST0229",
            f'the policy is "{policies.get(other[0], expected.of(other[0]).text)}", and the '
            f'training step was created with "{recorded.of(other[0]).text}"',
            location=f'plan/recompute ("{other[0]}")',
            remedy="Create the step with train_step(..., recompute=plan.recompute).",
        )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read stacks: what a trainer's software does, as data (``stacks/*.json``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tvm_distir.hardware import ASSUMED, MEANINGS, Constant, System, no_json, wrong
from tvm_distir.support import (
    Count,
    HardwareError,
    NotNegative,
    Text,
    UsageError,
    check_version,
    nearest,
    read_json,
    read_model,
)

SCHEMA_VERSION = 1
DATA = Path(__file__).parent / "stacks"
BEST = "best"
"""The stack that pins nothing."""


@dataclass(frozen=True)
class PinnedOptions:
    """Options of a step that a stack pins; None leaves one as it is without a stack.

    Attributes
    ----------
    kernels, bucket_bytes, ahead_bytes, overlap_activations, overlap_optimizer, allocator
        As :class:`.step_options.StepOptions` has them; no trainer has the storage plan of `run`.
    """

    kernels: Text | None = None
    bucket_bytes: Count | Literal["unit"] | None = None
    ahead_bytes: Count | None = None
    overlap_activations: bool | None = None
    overlap_optimizer: bool | None = None
    allocator: Literal["framework", "pytorch", "pytorch-expandable"] | None = None


@dataclass(frozen=True)
class HostConstant:
    """A constant of the host's work, and its source."""

    value: NotNegative
    source: Text


@dataclass(frozen=True)
class Stack:
    """The software of a trainer.

    Attributes
    ----------
    name, description, source : str
    options : PinnedOptions
    placements : str
        What decides placements that a strategy leaves open: ``bytes`` sent, as in trainers, which
        know no times; or ``times``.
    recompute : mapping of str to str
        Policies by the words of the trainer for them.
    kernels : mapping of str to str
        Kernel profiles by the names that a user states for them, such as the trainer's ``fp8``.
    constants : mapping of str to HostConstant
        Constants of the host, in the place of those that a system assumes.
    leaves_open : str
        What the stack does not pin.
    trainer : str, optional
        The format of ``td.export_plan`` whose options state the plans that the trainer runs.
    """

    name: Text
    description: Text
    source: Text
    leaves_open: Text
    options: PinnedOptions = field(default_factory=PinnedOptions)
    placements: Literal["bytes", "times"] = "times"
    recompute: Mapping[str, Text] = field(default_factory=dict)
    kernels: Mapping[str, Text] = field(default_factory=dict)
    constants: Mapping[str, HostConstant] = field(default_factory=dict)
    trainer: Literal["megatron", "torchtitan", "deepspeed"] | None = None

    @staticmethod
    def load(name_or_path: str | Path) -> Stack:
        """Read a stack by its name, or from a JSON file.

        Raises
        ------
        HardwareError
            DIST0701 for a name that is none, DIST0702 for a file that is no JSON, DIST0703 for an
            unknown, missing or wrong value.
        """
        name, known = str(name_or_path), stack_names()
        if name in known:
            return _own(name)
        if not os.path.exists(name):
            raise HardwareError(
                "DIST0701", f"there is no stack {name!r}, nor a file of that name",
                location="stack", remedy=f"{nearest(name, known)} Available: {', '.join(known)}.",
            )  # fmt: skip
        return _read(Path(name))

    @staticmethod
    def resolve(stack: Any) -> Stack:
        """Return the stack that is given, by name or path too.

        Raises
        ------
        UsageError
            DIST0152 for what is no stack.
        HardwareError
            The errors of :meth:`load`.
        """
        if isinstance(stack, (str, Path)):
            return Stack.load(stack)
        if not isinstance(stack, Stack):
            problem = f"the argument is of type {type(stack).__name__}, and a stack is required"
            remedy = f"Give a Stack, or the name or path of one. Names: {', '.join(stack_names())}."
            raise UsageError("DIST0152", problem, location="stack", remedy=remedy)
        return stack

    def on(self, system: System) -> System:
        """Return a system with the constants of the stack in the place of assumed ones."""
        known = system.constants
        pinned = {
            name: Constant(constant.value, constant.source)
            for name, constant in self.constants.items()
            if name in known and known[name].source.lower().startswith(ASSUMED)
        }
        stages = tuple(map(self.on, system.stages))
        return replace(system, constants={**known, **pinned}, stages=stages)

    def policy(self, recompute: str | Mapping[str, str]) -> str | dict[str, str]:
        """Return recomputation with the policies of the stack in the place of its words.

        Its grammar is that of :mod:`.recomputation`.
        """
        if isinstance(recompute, str):
            return ",".join(map(self._rule, recompute.split(",")))
        return {name: self._rule(runs) for name, runs in recompute.items()}

    def profile(self, kernels: str) -> str:
        """Return the kernel profile that a stated name stands for."""
        return self.kernels.get(kernels, kernels)

    def _rule(self, rule: str) -> str:
        """Return the policies of the runs of calls, behind the name of a function if any."""
        name, equals, runs = rule.rpartition("=")
        parts = (run.partition("*") for run in runs.split("+"))
        words = (self.recompute.get(word.strip(), word) + by + n for word, by, n in parts)
        return name + equals + "+".join(words)


def stack_names() -> tuple[str, ...]:
    """Return the names of the stacks of the package."""
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))


@cache
def _own(name: str) -> Stack:
    return _read(DATA / f"{name}.json")


def _read(path: Path) -> Stack:
    content = check_version(
        read_json(path, no_json, repeated=wrong), str(path), wrong, SCHEMA_VERSION
    )
    stack = read_model(Stack, content, str(path), wrong)
    for name in stack.constants:
        if name not in MEANINGS:
            raise wrong(f"{path}/constants/{name}", "no system has it", nearest(name, MEANINGS))
    return stack

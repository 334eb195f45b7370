# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Enumerate meshes, stages and micro-batches within constraints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tvm_distir.core.plan import DEFAULT_MESH, MeshSpec, Plan, PlanRule, Schedule
from tvm_distir.hardware import System

from .constraints import Constraints

STAGES = "pp"
"""Name of the axis whose devices work on different stages."""

BATCH = "dp"
"""Name of the axis along which a micro-batch is taken to be cut."""


Axes = tuple[tuple[str, int], ...]
"""The axes of a mesh with sizes above 1; there is at least a single axis."""


@dataclass(frozen=True)
class Candidate:
    """Choice of everything but placements.

    Attributes
    ----------
    axes : tuple of (str, int)
        The axes of the mesh of a stage; of the first stage, where they differ.
    stages, micro_batches, chunks : int
    recompute : str
    ranks : tuple of tuple
        The axes of each rank's mesh, where they differ.
    cuts : tuple of str
        Names of the values that end a stage; empty: by cost.
    """

    axes: Axes
    stages: int = 1
    micro_batches: int = 1
    chunks: int = 1
    recompute: str = "none"
    ranks: tuple[Axes, ...] = ()
    cuts: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return a text of the choice that is unique to it."""
        return ",".join(self.words)

    @property
    def words(self) -> tuple[str, ...]:
        """Return the numbers of the choice as texts."""
        parts = [f"{STAGES}={self.stages}"] if self.stages > 1 else []
        if self.ranks:
            parts += ["|".join("*".join(f"{name}={n}" for name, n in axes) for axes in self.ranks)]
        else:
            parts += [f"{name}={size}" for name, size in self.axes]
        parts += [f"cuts={'/'.join(self.cuts)}"] if self.cuts else []
        if self.schedule is not None:
            parts += [f"micro_batches={self.micro_batches}"]
        if self.chunks > 1:
            parts += [f"chunks={self.chunks}"]
        return (*parts, *([f"recompute={self.recompute}"] if self.recompute != "none" else []))

    @property
    def devices(self) -> int:
        """Return the devices of the first stage."""
        return math.prod(size for _, size in self.axes)

    @property
    def mesh(self) -> MeshSpec:
        """Return the mesh of a stage; of the first stage, where they differ."""
        return MeshSpec(DEFAULT_MESH, dict(self.axes))

    @property
    def meshes(self) -> tuple[MeshSpec, ...]:
        """Return each kind of mesh once, on the devices of the first rank that has it.

        Large ones come first, so that each begins at a multiple of its size.
        """
        if not self.ranks:
            return (self.mesh,)
        meshes, start = [], 0
        for number, axes in enumerate(self._kinds):
            meshes.append(MeshSpec(f"mesh{number}", dict(axes), start=start))
            start += math.prod(size for _, size in axes) * self.ranks.count(axes)
        return tuple(meshes)

    @property
    def _kinds(self) -> list[Axes]:
        return sorted(set(self.ranks), key=lambda axes: (-math.prod(n for _, n in axes), axes))

    @property
    def schedule(self) -> Schedule | None:
        """Return the schedule of stages and micro-batches; None for a step at once."""
        if self.stages == 1 and self.micro_batches == 1:
            return None
        kind = "interleaved" if self.chunks > 1 else "1f1b"
        names = tuple([f"mesh{self._kinds.index(axes)}" for axes in self.ranks])
        return Schedule(kind, self.stages, self.micro_batches, self.chunks, self.cuts, meshes=names)

    def completed(self, plan: Plan) -> Plan:
        """Return a plan of placements with the other choices of the candidate."""
        recompute = {} if self.recompute == "none" else {"*": self.recompute}
        return replace(plan, recompute=recompute, schedule=self.schedule)


@dataclass(eq=False)
class Enumeration:
    """All candidates within constraints.

    Attributes
    ----------
    constraints : Constraints
    devices : int
    system : System
    batch : int, optional
        Samples of a step; None where they cannot be divided into micro-batches.
    stages : bool
        Whether the model can be cut into stages: it is a training step to be made.
    excluded : Counter of str
        The number of meshes that were left out, by reason: ``constraint``, ``divisibility``.
    """

    constraints: Constraints
    devices: int
    system: System
    batch: int | None
    stages: bool
    excluded: Counter[str] = field(default_factory=Counter, init=False)

    @property
    def in_stages(self) -> bool:
        """Return whether the space has stages."""
        return self.stages and STAGES in self.constraints.axes

    def __iter__(self) -> Iterator[Candidate]:
        """Yield each candidate once, with the first policy of recomputation."""
        names = [n for n in self.constraints.axes if n != STAGES or self.stages]
        seen: set[Candidate] = set()  # without the names of axes, which mean nothing
        for sizes in factorisations(self.devices, len(names)):
            chosen = dict(zip(names, sizes, strict=True))
            if not self.allows(chosen):
                self.excluded["constraint"] += 1
                continue
            for candidate in self._in_micro_batches(chosen):
                nameless = replace(candidate, axes=tuple(("", size) for _, size in candidate.axes))
                if nameless not in seen:
                    seen.add(nameless)
                    yield candidate

    def meshes(self) -> Iterator[dict[str, int]]:
        """Yield each mesh of all devices with axis names, which strategies depend on."""
        names = [n for n in self.constraints.axes if n != STAGES]
        for sizes in factorisations(self.devices, len(names)):
            chosen = dict(zip(names, sizes, strict=True))
            if self.allows(chosen):
                yield {name: size for name, size in chosen.items() if size > 1} or {BATCH: 1}

    def allows(self, chosen: Mapping[str, int]) -> bool:
        """Return whether constraints allow sizes of axes, by name; others have a single device."""
        rules, node = self.constraints, self.system.intra_node.devices_per_node
        if any(chosen.get(name, 1) > size for name, size in rules.most.items()):
            return False
        if any(chosen.get(name, 1) != size for name, size in rules.fixed.items()):
            return False
        inner = 1
        for name, size in reversed(list(chosen.items())):
            crosses = size > 1 and (inner * size > node or node % (inner * size))
            if name in rules.inside_node and crosses:
                return False
            inner *= size
        return True

    def _in_micro_batches(self, chosen: Mapping[str, int]) -> Iterator[Candidate]:
        rules = self.constraints
        axes = tuple((name, n) for name, n in chosen.items() if n > 1 and name != STAGES)
        axes = axes or ((BATCH, 1),)
        stages = chosen.get(STAGES, 1)
        if stages == 1 and not (self.stages and rules.counts):
            yield Candidate(axes, recompute=rules.recompute[0])
            return
        for count in self._counts(chosen.get(BATCH, 1)):
            for chunks in rules.chunks if stages > 1 else (1,):
                if chunks > 1 and count % stages:
                    self.excluded["divisibility"] += 1
                    continue
                yield Candidate(axes, stages, count, chunks, rules.recompute[0])

    def _counts(self, parts: int) -> Iterator[int]:
        """Yield the numbers of micro-batches that constraints name for so many parts of a batch."""
        rules = self.constraints
        for number in rules.counts or rules.micro_batches:
            if self.batch is None or self.batch % (parts * number):
                self.excluded["divisibility"] += 1
            else:
                yield number if rules.counts else self.batch // (parts * number)

    def is_open(self, candidate: Candidate) -> bool:
        """Return whether the memory decides the number of a candidate's micro-batches."""
        return candidate.stages == 1 and self.stages and not self.constraints.counts

    def with_more_micro_batches(self, candidate: Candidate, factor: float) -> Candidate | None:
        """Return a candidate without stages with the next larger number of micro-batches, if any.

        Parameters
        ----------
        candidate : Candidate
        factor : float
            The number of micro-batches grows by this factor at least.
        """
        if not self.is_open(candidate) or not self.batch:
            return None
        samples = self.batch // dict(candidate.axes).get(BATCH, 1)
        least = max(candidate.micro_batches + 1, candidate.micro_batches * factor)
        counts = (n for n in range(math.ceil(least), samples + 1) if samples % n == 0)
        count = next(counts, None)
        return None if count is None else replace(candidate, micro_batches=count)


def factorisations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as an ordered product of so many factors."""
    if count == 1:
        yield (number,)
        return
    for size in range(1, number + 1):
        if number % size == 0:
            for rest in factorisations(number // size, count - 1):
                yield (size, *rest)


def kept_rules(keep: Plan | None, mesh: MeshSpec) -> Plan:
    """Return the rules that are to hold, for a mesh whose axes may be others: these are open.

    Along an axis of a single device, which a mesh leaves out, nothing needs to hold.
    """
    if keep is None:
        return Plan((mesh,))
    rules: list[PlanRule] = []
    for rule in keep.rules:
        names = keep.mesh(rule.mesh).axis_names
        label_of = dict(zip(names, rule.placement, strict=True))
        moving = tuple(
            mesh.axis_names.index(names[a]) for a in rule.moving if names[a] in mesh.axes
        )
        placement = tuple(label_of.get(name) for name in mesh.axis_names)
        rules.append(replace(rule, placement=placement, mesh=mesh.name, moving=moving))
    return Plan((mesh,), tuple(rules))

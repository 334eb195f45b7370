# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict steps of a serving engine of any sizes, from the programs of a few.

The numbers of a program (FLOPs, bytes, payloads) are sums of monomials in the sizes of a step,
fitted exactly to samples that went through the pipeline, as in a sweep. So the times are those of
the pipeline to the picosecond, for thousands of sizes at once. Layers of the same kind take equally
long, so that a deep model is predicted from two of few layers.

A step in pipeline stages has a time in each stage, and one from the end of a stage to the beginning
of the next: the parts of its time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tvm_distir.core.ir.operators import EXPERT_MATMUL_OP
from tvm_distir.core.ops import active_experts
from tvm_distir.core.rewriting import gc_paused
from tvm_distir.hardware import PICOSECONDS
from tvm_distir.models import serving_step
from tvm_distir.performance import (
    FlatBatch,
    FlatTimes,
    Peaks,
    Profile,
    Program,
    ProgramTemplate,
    grouped,
    numbers_of,
)
from tvm_distir.planning.study import Study
from tvm_distir.support import SimulationError, memoized

from .served_model import ServedModel
from .size_order import SizeOrder, SizeRanges, ranges_of, slots_of
from .step_memory import StepMemory, memory_of_step
from .step_predictions import StepPredictions

Ints = npt.NDArray[np.int64]

_DECODE = ((1, 0), (3, 100), (8, 700), (17, 2300), (64, 500), (250, 6000), (40, 40))
"""Requests and tokens in each cache of the samples of steps that decode."""
_PREFILL = ((16, 0), (48, 100), (130, 1000), (512, 0), (2048, 4096), (8192, 512), (300, 7000))
"""Tokens of a prompt, and tokens before them in its cache, of the samples that fill caches."""
_FEW_TOKENS = ((2, 3), (5, 300))
"""More of these samples, in which tokens select a part of the experts."""
_FEW_WORDS = 4096
"""The largest vocabulary of which a step that decodes may look up more rows than there are."""
_MOST_ROWS = 8192
_MOST_RANGES = 4
_EXTRA = ((1, 1), (2, 0), (1, 0), (0, 1))
"""Exponents of the terms of causal attention to pages."""


@dataclass
class _Kind:
    """Steps whose programs differ in numbers only.

    Attributes
    ----------
    template : ProgramTemplate
    batch : FlatBatch
    experts : tuple of (int, int)
        Experts that a device has, and how many pools of tokens select among them.
    """

    template: ProgramTemplate
    batch: FlatBatch
    experts: tuple[tuple[int, int], ...]

    @cached_property
    def peaks(self) -> Peaks:
        """Return the peaks of memory of the steps."""
        template = self.template
        return Peaks(template.program, template.numbers, template.which)


@dataclass
class _Part:
    """Steps that decode, or that fill caches, by ranges of their first size.

    Attributes
    ----------
    ranges : SizeRanges
    kinds : list of _Kind
    """

    ranges: SizeRanges
    kinds: list[_Kind]


class Surface:
    """Times and memory of the steps of an engine.

    Parameters
    ----------
    served : ServedModel
    new : int
        Tokens of a request in a step that decodes: more than 1 with speculation.
    shallow : Surface, optional
        That of the model with fewer layers, whose programs change at the same sizes.

    Raises
    ------
    SimulationError
        DIST0760 for a plan whose programs change with sizes in more than numbers.
    """

    def __init__(self, served: ServedModel, new: int = 1, shallow: Surface | None = None) -> None:
        self.served, self.new, self._shallow = served, new, shallow
        self._depths: tuple[Surface, Surface, tuple[int, ...]] | None = None
        if served.repeated is not None:
            few, more, times = served.repeated
            first = Surface(few, new)
            self._depths = first, Surface(more, new, first), times

    def decode_ps(self, batch: Ints, context: Ints) -> Ints:
        """Return the picoseconds of steps that decode.

        Parameters
        ----------
        batch : int64 array (rows,)
            Requests; rounded up to a multiple of the parts of data parallelism.
        context : int64 array (rows,)
            Tokens in the cache of each.
        """
        return np.asarray(self.decode_parts_ps(batch, context).sum(axis=0), np.int64)

    def prefill_ps(self, tokens: Ints, past: Ints) -> Ints:
        """Return the picoseconds of steps that fill a cache with ``tokens`` behind ``past``."""
        return np.asarray(self.prefill_parts_ps(tokens, past).sum(axis=0), np.int64)

    def decode_parts_ps(self, batch: Ints, context: Ints) -> Ints:
        """Return the parts of :meth:`decode_ps`, (2 * stages - 1, rows)."""
        pools = self.served.pools
        batch = -(-np.asarray(batch, np.int64) // pools) * pools
        return self._parts_ps(False, batch, np.asarray(context, np.int64))

    def prefill_parts_ps(self, tokens: Ints, past: Ints) -> Ints:
        """Return the parts of :meth:`prefill_ps`, (2 * stages - 1, rows)."""
        return self._parts_ps(True, np.asarray(tokens, np.int64), np.asarray(past, np.int64))

    def decode_s(self, batch: int, context: int) -> float:
        """Return the seconds of a step that decodes."""
        return float(self.decode_ps(np.array([batch]), np.array([context]))[0]) / PICOSECONDS

    def prefill_s(self, tokens: int, past: int = 0) -> float:
        """Return the seconds of a step that fills a cache."""
        return float(self.prefill_ps(np.array([tokens]), np.array([past]))[0]) / PICOSECONDS

    def memory(self, tokens: int) -> StepMemory:
        """Return the memory of an engine whose steps have so many tokens at most.

        The workspace of steps grows with their tokens: that of the smallest sample with as many
        is taken, or that of the largest one in proportion. Of stages it is the memory of that in
        which caches hold the fewest tokens.
        """
        capacity = self.served.system.memory_capacity_bytes
        return min(self.memories(tokens), key=lambda memory: memory.tokens(capacity))

    def least_memory(self) -> StepMemory:
        """Return the memory of an engine without workspace, from the smallest step alone."""
        capacity = self.served.system.memory_capacity_bytes
        stages = [replace(stage, workspace_bytes=0) for stage in self._smallest()]
        return min(stages, key=lambda memory: memory.tokens(capacity))

    def _smallest(self) -> list[StepMemory]:
        """Return the memory of each stage in the smallest step."""
        if self._depths is not None:
            few, more, times = self._depths
            return _deeper(few._smallest(), more._smallest(), times)
        samples = self._samples(False)
        return samples.memory(*samples.sizes[0])[1]

    def memories(self, tokens: int) -> list[StepMemory]:
        """Return the memory of each stage, as :meth:`memory` has it."""
        if self._depths is not None:
            few, more, times = self._depths
            return _deeper(few.memories(tokens), more.memories(tokens), times)
        samples = sorted(
            self._samples(False).memories + self._samples(True).memories,
            key=lambda sample: (sample[0], [stage.workspace_bytes for stage in sample[1]]),
        )
        workspaces = [0.0] * self.served.stages
        for count, stages in samples:
            share = max(1.0, tokens / samples[-1][0])
            workspaces = [
                max(size, stage.workspace_bytes * share)
                for size, stage in zip(workspaces, stages, strict=True)
            ]
            if count >= tokens:
                break
        return [
            replace(stage, workspace_bytes=math.ceil(size))
            for stage, size in zip(samples[0][1], workspaces, strict=True)
        ]

    def _parts_ps(self, prefill: bool, first: Ints, before: Ints) -> Ints:
        result = np.zeros((2 * self.served.stages - 1, first.size), np.int64)
        if self._depths is None:
            for rows, kind, quantities in self._quantities(prefill, first, before):
                result[:, rows] = self._checked(kind.batch.run(quantities)).part_ps
            return result
        few, more, periods = self._depths
        for rows in _parts_of_rows(first):
            low, high = (d._parts_ps(prefill, first[rows], before[rows]) for d in (few, more))
            low[::2] += np.array(periods, np.int64)[:, None] * (high[::2] - low[::2])
            result[:, rows] = low
        return result

    def costs(self, batch: Ints, context: Ints) -> StepPredictions:
        """Return the times and the memory of steps that decode, as :meth:`decode_ps` takes them.

        Raises
        ------
        SimulationError
            DIST0760 for a plan with stages, as each has a peak of its own.
        """
        if self.served.stages > 1:
            raise _unpredicted(self.served, "its stages have a peak of memory each")
        batch, context = np.asarray(batch, np.int64), np.asarray(context, np.int64)
        parts = []
        if self._depths is not None:
            few, more, periods = self._depths
            for rows in _parts_of_rows(batch):
                low, high = (depth.costs(batch[rows], context[rows]) for depth in (few, more))
                parts.append((rows, low.extended(high, *periods)))
            return StepPredictions.joined(parts, batch.size)
        for rows, kind, quantities in self._quantities(False, batch, context):
            times, resources = kind.batch.bounded(quantities)
            time_ps = self._checked(times).time_ps
            parts.append((rows, StepPredictions(time_ps, kind.peaks.of(quantities), resources)))
        return StepPredictions.joined(parts, batch.size)

    def _checked(self, times: FlatTimes) -> FlatTimes:
        """Return the times, all of which must fit (SimulationError DIST0760)."""
        if not times.fits.all():
            raise _unpredicted(self.served, "a time is too long")
        return times

    def _quantities(
        self, prefill: bool, first: Ints, before: Ints
    ) -> Iterator[tuple[Ints, _Kind, Ints]]:
        """Yield rows of sizes of the same kind, and the quantities of their programs."""
        part = self._part(prefill)
        which = part.ranges.of(first)
        for number, kind in enumerate(part.kinds):
            selected = np.flatnonzero(which == number)
            for inside in _parts_of_rows(first[selected]):
                rows = selected[inside]
                symbols = self._symbols(prefill, first[rows], before[rows], kind.experts)
                quantities, exact = kind.template.at(symbols)
                if not exact.all():
                    raise _unpredicted(self.served, "a number of the program is no integer")
                yield rows, kind, quantities

    @memoized
    def _samples(self, prefill: bool) -> _Samples:
        return _Samples(self, prefill)

    @memoized
    @gc_paused()
    def _part(self, prefill: bool) -> _Part:
        """Fit the programs of steps to samples, by ranges of the first size.

        What a plan leaves open is decided by costs, so collectives may change where there are more
        tokens, or where experts have more slots for them. They mostly do where those of a model of
        fewer layers do.
        """
        samples, config = self._samples(prefill), self.served.config[0]
        tokens = 1 if prefill else self.new
        more = []
        if not prefill and config.vocab <= _FEW_WORDS:  # a look-up reads a table once at most
            more = [((config.vocab + 44) * samples.step, 20)]
        guesses = None if self._shallow is None else self._shallow._part(prefill).ranges
        slots = bool(config.experts and config.capacity_factor)
        order = SizeOrder(config, samples.step, tokens, slots)
        sizes = [*samples.sizes, *more]
        ranges = ranges_of(order, sizes, samples.skeleton, samples.few, guesses)
        if len(ranges.begins) > _MOST_RANGES:
            raise _unpredicted(self.served, "its programs change with the sizes of steps")
        kinds = [self._kind(prefill, samples, inside) for inside in ranges.samples()]
        return _Part(ranges, kinds)

    def _kind(self, prefill: bool, samples: _Samples, sizes: list[tuple[int, int]]) -> _Kind:
        """Fit the programs of a range of sizes."""
        if len({samples.skeleton(*size) for size in sizes}) > 1:
            raise _unpredicted(self.served, "its programs change with the tokens in caches")
        table = np.array(sizes, np.int64).T
        experts = samples.experts(*sizes[0])
        symbols = self._symbols(prefill, table[0], table[1], experts)
        extra = self._extra(symbols, prefill or self.new > 1, len(experts))
        programs = [samples.program(*size) for size in sizes]
        template = ProgramTemplate.of(programs, symbols.T.tolist(), extra)
        system, numbers = self.served.system, template.numbers
        blocking = Profile.resolve(system.kernels).blocking
        batch = FlatBatch(programs[0], system, numbers, template.which, blocking)
        return _Kind(template, batch, experts)

    def _extra(self, symbols: Ints, causal: bool, experts: int) -> list[tuple[int, ...]]:
        """Return the exponents of terms of attention: to pages, and in a window; and of experts.

        A symbol that all samples share is no term: it would pass for a constant, such as the slot
        behind those of experts.
        """
        count = symbols.shape[0]
        rest = (0,) * (count - 2)
        extra = [(*e, *rest) for e in _EXTRA] if causal else []
        if self.served.config[0].window:
            rest = (0,) * (count - 4)
            for position in ((1, 0), (0, 1)):
                extra += [(1, 0, *position, *rest), (0, 0, *position, *rest)]
            extra += [(1, 0, 0, 0, *rest)]
        if experts:
            extra += [(0,) * count]
        extra += [tuple(int(k == count - n) for k in range(count)) for n in range(1, experts + 1)]
        shared = np.flatnonzero(np.ptp(symbols, axis=1) == 0).tolist()
        return [term for term in extra if not any(term[k] for k in shared)]

    def _symbols(
        self, prefill: bool, first: Ints, before: Ints, experts: Sequence[tuple[int, int]]
    ) -> Ints:
        """Return the symbols of formulas, (symbols, rows): sizes, pages, and what follows of them.

        Windows limit the keys that are read, experts have a capacity, and few tokens select few of
        them: all three are no monomials.
        """
        config, caches = self.served.config
        new = first if prefill else np.full(first.size, self.new, np.int64)
        pages = -(-(before + new) // caches.page)
        rows = [first, pages]
        if config.window:
            positions = pages * caches.page
            rows.append(np.minimum(positions, config.window + new))
            pairs = new * positions - new * (new - 1) // 2
            rows.append(np.minimum(pairs, new * config.window))
        if config.experts:
            tokens = first if prefill else first // self.served.pools * new
            rows.append(slots_of(config, tokens) if config.capacity_factor else tokens)
            rows += [
                active_experts(local, config.experts, config.top_k, pools * tokens)
                for local, pools in experts
            ]
        return np.array(rows, np.int64)


class _Samples:
    """Programs of steps that went through the pipeline, each once.

    Attributes
    ----------
    sizes : list of (int, int)
        The first sizes and tokens in caches at which all steps are sampled.
    few : int
        How many of them, the first ones, have few tokens.
    step : int
        First sizes are multiples of it: of the parts of data parallelism.
    """

    def __init__(self, surface: Surface, prefill: bool) -> None:
        self.served, self.prefill, self.new = surface.served, prefill, surface.new
        self.profile = Profile.resolve(self.served.system.kernels)
        self.step = 1 if prefill else self.served.pools
        few = _FEW_TOKENS if prefill and self.served.config[0].experts else ()
        sizes = (*few, *(_PREFILL if prefill else _DECODE))
        self.few = len(few)
        self.sizes = [(-(-first // self.step) * self.step, before) for first, before in sizes]

    def _sizes(self, first: int) -> tuple[int, int]:
        return (self.served.pools, first) if self.prefill else (first, self.new)

    @memoized
    def _sample(self, first: int, before: int) -> tuple[Study, Program, str]:
        study = self.served.study(*self._sizes(first), before)
        program = grouped(study.program, self.profile)
        return study, program, numbers_of(program).skeleton

    def program(self, first: int, before: int) -> Program:
        """Return the program of a step, grouped into kernels."""
        return self._sample(first, before)[1]

    def experts(self, first: int, before: int) -> tuple[tuple[int, int], ...]:
        """Return the experts of a device and the pools whose tokens they take, as programs have.

        The rows of an expert are its slots for each pool.
        """
        study = self._sample(first, before)[0]
        config = serving_step(self.served.text(*self._sizes(first), before))[0]
        if not config.experts:
            return ()
        seq = config.batch // self.served.pools * config.seq
        slots = replace(config, seq=seq).capacity
        shapes = {
            fn.values[op.inputs[0]].shape
            for fn in study.program.functions.values()
            for op in fn.ops
            if op.op == EXPERT_MATMUL_OP
        }
        return tuple(sorted({(local, -(-rows // slots)) for local, rows, _ in shapes}))

    def skeleton(self, first: int, before: int) -> str:
        """Return the digest of all of a program but its numbers."""
        return self._sample(first, before)[2]

    def memory(self, first: int, before: int) -> tuple[int, list[StepMemory]]:
        """Return the tokens and the memory of each stage of a step."""
        study, program, _ = self._sample(first, before)
        return memory_of_step(study, program, *self._sizes(first), before)

    @cached_property
    @gc_paused()
    def memories(self) -> list[tuple[int, list[StepMemory]]]:
        """Return the tokens and the memory of each stage of the steps at :attr:`sizes`."""
        return [self.memory(*size) for size in self.sizes]


def _deeper(
    few: Sequence[StepMemory], more: Sequence[StepMemory], times: Sequence[int]
) -> list[StepMemory]:
    """Return the memory of each stage with as many more layers as are repeated."""
    return [
        StepMemory(
            low.weight_bytes + n * (high.weight_bytes - low.weight_bytes),
            low.token_bytes + n * (high.token_bytes - low.token_bytes),
            low.workspace_bytes + n * max(0, high.workspace_bytes - low.workspace_bytes),
        )
        for low, high, n in zip(few, more, times, strict=True)
    ]


def _parts_of_rows(first: Ints) -> Iterator[Ints]:
    """Yield rows that are computed at once, in the order of their first size.

    Most kernels of a step depend on the first size alone, so that few of a part are distinct.
    Steps of two depths are computed for a part after each other, as their kernels are the same:
    what was interpolated in tables of measured kernels is still known.
    """
    order = np.argsort(first, kind="stable")
    return (order[at : at + _MOST_ROWS] for at in range(0, first.size, _MOST_ROWS))


def _unpredicted(served: ServedModel, problem: str) -> SimulationError:
    return SimulationError(
        "DIST0760", problem,
        location=f"{served.model} ({served.strategy})",
        remedy="Use megatron, data_parallel or expert_parallel.",
    )  # fmt: skip

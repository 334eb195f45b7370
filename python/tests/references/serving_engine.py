# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Serve the requests of a replica step by step, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm_distir.planning.serving.engine_loop import UNIT, EngineLoop, too_long
from tvm_distir.planning.serving.workload import Requests

Chunks = list[tuple[int, int]]
"""Requests, each with the tokens of its prompt that a step fills its cache with."""


def _interpolated(
    rows: Sequence[int],
    columns: Sequence[int],
    times: Sequence[Sequence[float]],
    row: float,
    column: float,
) -> float:
    """Return a time of a table: bilinear between its points, linear beyond."""
    i, j = _below(rows, row), _below(columns, column)
    u = (row - rows[i]) / float(rows[i + 1] - rows[i])
    v = (column - columns[j]) / float(columns[j + 1] - columns[j])
    first = times[i][j] + (times[i][j + 1] - times[i][j]) * v
    second = times[i + 1][j] + (times[i + 1][j + 1] - times[i + 1][j]) * v
    return first + (second - first) * u


def _below(axis: Sequence[int], value: float) -> int:
    return next((i for i, end in enumerate(axis[1:-1]) if value < end), len(axis) - 2)


@dataclass
class ServedRequest:
    """A request and its state: tokens in its cache, pages, and tokens generated (in UNIT parts)."""

    arrival: int
    input: int
    output: int
    prefix: int
    prefix_tokens: int
    filled: bool
    unfilled: int
    held: int = 0
    pages: int = 0
    shared: int = 0
    made: int = 0
    uses_prefix: bool = False
    first: int = -1
    finish: int = -1
    start: int = -1
    preemptions: int = 0
    replica: int = -1


@dataclass
class _Prefix:
    """The pages of a prefix, how many requests use them, and when they were used last."""

    pages: int
    users: int
    used_at: int


class ReferenceEngine:
    """Serves the requests of a replica step by step."""

    def __init__(
        self, loop: EngineLoop, requests: Requests, entries: list[ServedRequest],
        stages: list[int], ended: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.stages, self.ended = stages, ended
        self.requests, self.entries, self.pools = requests, entries, loop.pools
        times, options, self.page = loop.times, loop.options, loop.page
        self.options = replace(options, requests=max(1, options.requests // len(stages)))
        self.total = self.free = loop.pages // len(stages)
        self.gain = round(times.gain * UNIT)
        self.overhead = round((options.step_overhead_us or 0.0) * 1e6)
        axes = (times.batches, times.contexts, times.tokens, times.pasts)
        self.axes: list[list[int]] = [axis.tolist() for axis in axes]
        self.decode: list[list[list[float]]] = times.decode_ps.astype(float).tolist()
        self.prefill: list[list[list[float]]] = times.prefill_ps.astype(float).tolist()
        self.prefixes: dict[int, _Prefix] = {}
        self.now = 0
        self.preempted = False
        self.queued: list[int] = []
        self.running: list[int] = []
        self.steps: list[list[int]] = []

    def _make_room(self, count: int) -> bool:
        """Free pages of unused prefixes, the oldest first; return whether they suffice."""
        while self.free < count:
            idle = [(p.used_at, key) for key, p in self.prefixes.items() if p.users == 0]
            if not idle:
                return False
            self.free += self.prefixes.pop(min(idle)[1]).pages
        return True

    def _grow(self, e: ServedRequest, tokens: int) -> bool:
        """Take pages so that a request can hold some tokens; return whether there are enough."""
        more = -(-tokens // self.page) - e.shared - e.pages
        if more <= 0:
            return True
        if not self._make_room(more):
            return False
        self.free -= more
        e.pages += more
        return True

    def _release(self, e: ServedRequest) -> None:
        self.free += e.pages
        e.pages = e.held = 0
        if e.uses_prefix:
            self.prefixes[e.prefix].users -= 1
            self.prefixes[e.prefix].used_at = self.now
            e.uses_prefix = False
        e.shared = 0

    def _admit(self, number: int, tokens: int) -> bool:
        e = self.entries[number]
        before = e.unfilled
        known = self.prefixes.get(e.prefix) if e.prefix >= 0 and not e.filled else None
        if known is not None:
            known.users += 1
            known.used_at = self.now
            e.uses_prefix, e.shared = True, known.pages
            e.held = min(known.pages * self.page, e.unfilled - 1)
            e.unfilled -= e.held
        arrives_full = e.filled and e.held == 0
        needed = e.input + 1 if arrives_full else e.held + min(tokens, e.unfilled)
        if not self._grow(e, needed):
            self._release(e)
            e.unfilled = before
            return False
        if arrives_full:
            e.held, e.made = e.input, e.made or UNIT
        if e.start < 0:
            e.start = self.now
        self.running.append(number)
        return True

    def _preempt(self, position: int) -> None:
        """Take its pages from a running request, which computes its tokens again later."""
        number = self.running.pop(position)
        e = self.entries[number]
        last = int(e.made > 0 and e.unfilled == 0)  # the cache lacks the last generated token
        e.unfilled, e.filled = e.held + e.unfilled + last, False
        self._release(e)
        e.preemptions += 1
        self.queued.insert(0, number)
        self.preempted = True

    def _choose_decoding(self, budget: int) -> tuple[list[int], int]:
        """Return the requests that decode, and the tokens that are left for the step."""
        chosen: list[int] = []
        position = 0
        while position < len(self.running):
            e = self.entries[self.running[position]]
            if e.unfilled > 0 or budget <= 0:
                position += 1
                continue
            while not self._grow(e, e.held + 1):
                if len(self.running) > position + 1:
                    self._preempt(len(self.running) - 1)
                    continue
                if len(self.running) > 1:
                    self._preempt(position)
                return chosen, budget
            chosen.append(self.running[position])
            budget -= 1
            position += 1
        return chosen, budget

    def step(self) -> None:
        """Choose what the next step works on, and do it.

        Raises
        ------
        SimulationError
            DIST0761 for a request that the caches do not hold.
        """
        kind, most = self.options.kind, self.options.tokens
        budget = most * self.pools
        together = kind == "continuous"
        chunks: Chunks = []
        decoding: list[int] = []
        prompts = any(self.entries[n].unfilled > 0 for n in self.running)
        may_admit = kind != "static" or not self.running
        self.preempted = False
        if together:
            decoding, budget = self._choose_decoding(budget)
        for number in self.running:
            e = self.entries[number]
            chunk = min(e.unfilled, budget, most)
            if chunk > 0 and self._grow(e, e.held + chunk):
                chunks.append((number, chunk))
                budget -= chunk
        while may_admit and not self.preempted and self.queued and budget > 0:
            if len(self.running) >= self.options.requests * self.pools:
                break
            number = self.queued[0]
            e = self.entries[number]
            if not together and e.unfilled > budget and chunks:
                break
            if not self._admit(number, min(budget, most)):
                break
            self.queued.pop(0)
            if e.unfilled == 0:
                if together:
                    decoding.append(number)
                continue
            chunks.append((number, min(e.unfilled, budget, most)))
            budget -= chunks[-1][1]
        if not together and not chunks:
            decoding, budget = self._choose_decoding(budget)
        if chunks or decoding:
            self._work(decoding, chunks)
        elif prompts and len(self.running) > 1:
            self._preempt(len(self.running) - 1)
        else:
            raise too_long(self.requests, self.total * self.page)

    def _time_ps(self, decoding: list[int], chunks: Chunks, part: int) -> int:
        """Return the time of a part of a step, without that of the host."""
        count = float(len(decoding))
        context = sum(float(self.entries[n].held) for n in decoding)
        context = context / count if count else 0.0

        def decode(past: float) -> float:
            return _interpolated(self.axes[0], self.axes[1], self.decode[part], count, past)

        if not chunks:
            return math.floor(decode(context) + 0.5)
        tokens = [float(chunk) for _, chunk in chunks]
        seen = [float(c) * (float(self.entries[n].held) + float(c) / 2) for n, c in chunks]
        filled = min(self.pools, len(chunks))
        rows = max(max(tokens), sum(tokens) / filled) + count / self.pools
        past = max(max(seen), sum(seen) / filled) / rows - rows / 2
        time = _interpolated(self.axes[2], self.axes[3], self.prefill[part], rows, past)
        if count:
            time += decode(context) - decode(0.0)
        return math.floor(time + 0.5)

    def _passed(self, decoding: list[int], chunks: Chunks) -> int:
        """Take each stage when the step arrives there and the stage is free; return its end."""
        time = self.now
        for stage, free in enumerate(self.stages):
            if stage:
                time += self._time_ps(decoding, chunks, 2 * stage - 1)
            duration = self._time_ps(decoding, chunks, 2 * stage)
            self.stages[stage] = time = max(time, free) + max(1, duration)
        return time

    def _work(self, decoding: list[int], chunks: Chunks) -> None:
        begin, used = self.now, self.total - self.free
        self.now = self._passed(decoding, chunks) + self.overhead
        for number, chunk in chunks:
            e = self.entries[number]
            e.held += chunk
            e.unfilled -= chunk
            if e.unfilled == 0:
                self._publish(e)
                if e.made == 0:
                    e.first = self.now
                e.made += UNIT
                self._end(e)
        for number in decoding:
            e = self.entries[number]
            e.made = min(e.output * UNIT, e.made + self.gain)
            e.held = max(e.held, e.input + e.made // UNIT - 1)
            if e.first < 0:
                e.first = self.now
            self._end(e)
        self.running = [n for n in self.running if self.entries[n].finish < 0]
        prompt_tokens = sum(chunk for _, chunk in chunks)
        self.steps.append([begin, self.now - begin, len(decoding), prompt_tokens, used])

    def _publish(self, e: ServedRequest) -> None:
        """Leave the full pages of the prefix of a request to others."""
        pages = min(e.prefix_tokens // self.page, e.pages)
        if e.prefix < 0 or e.uses_prefix or pages == 0 or e.prefix in self.prefixes:
            return
        self.prefixes[e.prefix] = _Prefix(pages, 1, self.now)
        e.pages -= pages
        e.shared, e.uses_prefix = pages, True

    def _end(self, e: ServedRequest) -> None:
        """End a request that has all its tokens."""
        if e.made < e.output * UNIT:
            return
        e.finish = self.now
        self._release(e)
        self.ended(self.now)

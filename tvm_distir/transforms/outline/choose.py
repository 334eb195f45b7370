# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the repeats of a sequence to outline, greedily by the bindings saved."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tvm_distir.core.analysis import live_bytes
from tvm_distir.support import lists_by_key

from .repeats import Ints, Run, occurrences, tandem_runs
from .sequence import Sequence

CUTS_TRIED = 4
"""The number of cleanest cuts of a run into layers that are tried."""


@dataclass(frozen=True)
class Repeat:
    """Occurrences of the same bindings with the same dataflow.

    Attributes
    ----------
    starts : tuple of int
        The beginning of each occurrence, in order; they do not overlap.
    length : int
        Bindings of each.
    outputs : tuple of int
        Offsets of the bindings that are read after any of the stretches.
    """

    starts: tuple[int, ...]
    length: int
    outputs: tuple[int, ...]

    @property
    def saved(self) -> int:
        """Return how many bindings outlining this repeat saves."""
        call = 1 if len(self.outputs) == 1 else 1 + len(self.outputs)
        return len(self.starts) * (self.length - call) - self.length


def choose_repeats(sequence: Sequence, min_repeats: int, min_bindings: int) -> list[Repeat]:
    """Choose the repeats to outline.

    Runs of equal parts are found by :func:`tandem_runs`. Each is cut where the fewest values
    cross the cuts; equal stretches elsewhere join; those wired differently part. The repeat
    that saves most is taken, and so on until nothing saves anything. Ties: the earlier.

    Parameters
    ----------
    sequence : Sequence
    min_repeats : int
        At least 2.
    min_bindings : int
        The least number of bindings of a stretch.

    Returns
    -------
    repeats : list of Repeat
        Disjoint, by first start.
    """
    chooser = _Chooser(sequence, min_repeats, min_bindings)
    while chooser.round():
        pass
    return sorted(chooser.chosen, key=lambda repeat: repeat.starts)


class _Chooser:
    """Chooser that takes repeats out of a sequence and makes their symbols unique."""

    def __init__(self, sequence: Sequence, min_repeats: int, min_bindings: int) -> None:
        self.sequence = sequence
        self.min_repeats, self.min_bindings = min_repeats, min_bindings
        self.symbols = sequence.symbols.copy()
        self.next_symbol = int(self.symbols.max(initial=0)) + 1
        self.crossing = _crossing(sequence.last_use)
        self.chosen: list[Repeat] = []

    def round(self) -> bool:
        """Search for runs once and take those that pay off; return whether to search again."""
        runs = tandem_runs(self.symbols, self.min_bindings, 2)
        # First by what a run saves at most; worked out when its turn comes, and put back.
        pending = [
            (-(run.count - 1) * run.period, False, number) for number, run in enumerate(runs)
        ]
        heapq.heapify(pending)
        repeats_of: dict[int, list[Repeat]] = {}
        covered = np.zeros(len(self.symbols), bool)
        disturbed = False
        while pending:
            _, known, number = heapq.heappop(pending)
            run = runs[number]
            if covered[run.start : run.stop].any():
                disturbed = True
                continue
            if not known:
                repeats_of[number] = self._work_out(run)
                if repeats_of[number]:
                    heapq.heappush(pending, (-saved(repeats_of[number]), True, number))
                continue
            for repeat in repeats_of[number]:
                if any(covered[s : s + repeat.length].any() for s in repeat.starts):
                    disturbed = True
                    continue
                self._take(repeat, covered)
        return disturbed and bool(covered.any())

    def _take(self, repeat: Repeat, covered: np.typing.NDArray[np.bool_]) -> None:
        self.chosen.append(repeat)
        for start in repeat.starts:
            stop = start + repeat.length
            covered[start:stop] = True
            self.symbols[start:stop] = np.arange(self.next_symbol, self.next_symbol + repeat.length)
            self.next_symbol += repeat.length

    def _work_out(self, run: Run) -> list[Repeat]:
        """Return the best repeats of a run, several where the dataflow of its parts differs."""
        best: list[Repeat] = []
        for first, count in self._cuts(run):
            starts = [first + i * run.period for i in range(count)]
            repeats = self._repeats(self._with_others(starts, run.period), run.period)
            if saved(repeats) > saved(best):
                best = repeats
        return best

    def _cuts(self, run: Run) -> list[tuple[int, int]]:
        """Return ways to split a run into parts, in order of the values that cross them."""
        candidates: list[tuple[int, int]] = []
        for count in (run.count, run.count - 1):
            if count < 2:
                continue
            starts = np.arange(run.start, run.stop - count * run.period + 1)
            borders = starts[:, None] + run.period * np.arange(count + 1)
            order = np.argsort(self.crossing[borders].sum(axis=1), kind="stable")[:CUTS_TRIED]
            candidates += [(int(starts[i]), count) for i in order]
        return candidates

    def _with_others(self, starts: list[int], length: int) -> list[int]:
        """Return the starts of a run's parts and of equal occurrences elsewhere."""
        pattern = self.symbols[starts[0] : starts[0] + length]
        others = list(starts)
        free_from = 0
        for start in occurrences(self.symbols, pattern):
            inside = start + length > starts[0] and start < starts[-1] + length
            if start >= free_from and not inside:
                others.append(start)
                free_from = start + length
        return sorted(others)

    def _repeats(self, starts: Iterable[int], length: int) -> list[Repeat]:
        """Group occurrences by their dataflow, and return the groups that pay off."""
        groups = lists_by_key(
            (self.sequence.wiring(start, start + length).tobytes(), start) for start in starts
        )
        repeats = [
            Repeat(tuple(group), length, self._outputs(group, length))
            for group in groups.values()
            if len(group) >= self.min_repeats
        ]
        return [repeat for repeat in repeats if repeat.outputs and repeat.saved > 0]

    def _outputs(self, starts: list[int], length: int) -> tuple[int, ...]:
        read_later = np.zeros(length, bool)
        for start in starts:
            read_later |= self.sequence.last_use[start : start + length] >= start + length
        return tuple(int(offset) for offset in np.flatnonzero(read_later))


def saved(repeats: list[Repeat]) -> int:
    """Return how many bindings outlining all these repeats saves."""
    return sum(repeat.saved for repeat in repeats)


def _crossing(last_use: Ints) -> Ints:
    """Count, per split position, the values that are computed before it and read after it."""
    used = np.flatnonzero(last_use > np.arange(len(last_use)))
    return live_bytes(used + 1, last_use[used], 1, len(last_use) + 1)

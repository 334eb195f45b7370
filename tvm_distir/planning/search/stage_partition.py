# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Partition layers into stages that fit into the ranks' memory, for the fastest step."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


def partition_stages(
    times: Sequence[int], parts: int, needs: Sequence[Sequence[int]] = (), memory_bytes: int = 0
) -> list[range] | None:
    """Cut a sequence into parts of which the most expensive is as cheap as can be.

    A part that begins later is the shorter for it, and fits where a longer part does; so parts that
    are as long as can be, in sequence, reach as far as any, and the least that the
    most expensive may take is determined by halving.

    Parameters
    ----------
    times : sequence of int
        The times of the items.
    parts : int
        Some are empty where there are more than items.
    needs : sequence of sequence of int, optional
        Bytes of each item in the first, second, ... part; of a part they are added up.
    memory_bytes : int
        Bytes that a part may take, where ``needs`` are given.

    Returns
    -------
    list of range, or None
        None where no cut fits.
    """
    low, high = max(times), sum(times)
    at = _sums(times)
    prefix_sums = [_sums(row) for row in needs]
    if _maximal_parts(at, high, parts, prefix_sums, memory_bytes) is None:
        return None
    while low < high:
        most = (low + high) // 2
        if _maximal_parts(at, most, parts, prefix_sums, memory_bytes) is None:
            low = most + 1
        else:
            high = most
    return _maximal_parts(at, low, parts, prefix_sums, memory_bytes)


def _sums(row: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(row)]


def _maximal_parts(
    at: Sequence[int],
    most: int,
    parts: int,
    prefix_sums: Sequence[Sequence[int]],
    memory_bytes: int,
) -> list[range] | None:
    """Return maximal parts within a limit; None where they do not reach the end.

    ``at`` and ``prefix_sums`` have the sums over all items before each item.
    """
    ranges, begin, count = [], 0, len(at) - 1
    for part in range(parts):
        end = bisect_right(at, at[begin] + most) - 1
        if prefix_sums:
            end = min(
                end, bisect_right(prefix_sums[part], prefix_sums[part][begin] + memory_bytes) - 1
            )
        ranges.append(range(begin, end))
        begin = end
    return ranges if begin == count else None


class StageAssignment(NamedTuple):
    """Assignment of a stage: its layers, and the number of its kind of mesh."""

    layers: range
    kind: int


def shared_out(
    times: Sequence[Sequence[int]],
    sizes: Sequence[int],
    needs: Sequence[Sequence[Sequence[int]]],
    devices: int,
    micro_batches: int,
    memory_bytes: int,
) -> tuple[int, list[StageAssignment]] | None:
    """Cut a sequence into stages on meshes of some kinds, so that a step takes least.

    A step takes ``(M - 1) * dearest + sum`` over its stages. For each time that the dearest may
    take, in ascending order, the least sum follows stage by stage over layers and devices that are
    used; no more of them are tried once the times alone make the step longer than the best.

    Parameters
    ----------
    times : sequence of sequence of int
        The times of each layer, per kind of mesh.
    sizes : sequence of int
        Devices of each kind of mesh.
    needs : sequence of sequence of sequence of int
        The bytes of each layer, per stage and kind of mesh; their number is that of the stages.
    devices : int
        The number of devices, all of which are used.
    micro_batches : int
    memory_bytes : int
        Bytes that a stage may take on a device.

    Returns
    -------
    (int, list of Share), or None
        The time of a step, and its stages; none is empty. None where no cut fits.
    """
    count = len(times[0])
    spans = [np.subtract.outer(at, at).T for at in map(np.array, map(_sums, times))]
    prefix_sums = [
        [np.subtract.outer(at, at).T <= memory_bytes for at in map(np.array, map(_sums, row))]
        for row in needs
    ]
    later = np.triu(np.ones((count + 1, count + 1), bool), 1)
    costs = sorted({int(x) for span in spans for x in span[later]})
    find = _Finder(spans, [[fits & later for fits in row] for row in prefix_sums], sizes, devices)
    least, _ = find.within(costs[-1])
    if least is None:
        return None
    low, high = 0, len(costs) - 1
    while low < high:
        middle = (low + high) // 2
        if find.within(costs[middle])[0] is None:
            low = middle + 1
        else:
            high = middle
    best: tuple[int, list[StageAssignment]] | None = None
    for most in costs[low:]:
        if best is not None and (micro_batches - 1) * most + least >= best[0]:
            break
        total, shares = find.within(most)
        assert total is not None
        step = (micro_batches - 1) * most + total
        if best is None or step < best[0]:
            best = step, shares
    return best


@dataclass(eq=False)
class _Finder:
    """Solver for the least sum of stage times under a limit of each."""

    spans: Sequence[npt.NDArray[np.int64]]
    fits: Sequence[Sequence[npt.NDArray[np.bool_]]]
    sizes: Sequence[int]
    devices: int

    def within(self, most: int) -> tuple[int | None, list[StageAssignment]]:
        """Return the least sum, and its stages; None where there are none."""
        count, none = len(self.spans[0]) - 1, np.iinfo(np.int64).max // 4
        sums = np.full((count + 1, self.devices + 1), none)  # by layers done and devices used
        sums[0, 0] = 0
        came: list[npt.NDArray[np.int64]] = []
        for fits in self.fits:
            after = np.full_like(sums, none)
            source = np.full((*sums.shape, 2), -1)
            for kind, (span, size) in enumerate(zip(self.spans, self.sizes, strict=True)):
                if size > self.devices:
                    continue
                cost = np.where(fits[kind] & (span <= most), span, none)
                # (from, to, devices used before)
                reached = sums[:, None, : self.devices + 1 - size] + cost[:, :, None]
                begin, value = reached.argmin(0), reached.min(0)
                better = value < after[:, size:]
                after[:, size:][better] = value[better]
                source[:, size:, 0][better] = begin[better]
                source[:, size:, 1][better] = kind
            came.append(source)
            sums = np.minimum(after, none)
        if sums[count, self.devices] >= none:
            return None, []
        shares: list[StageAssignment] = []
        end, used = count, self.devices
        for source in reversed(came):
            begin, kind = map(int, source[end, used])
            shares.append(StageAssignment(range(begin, end), kind))
            end, used = begin, used - self.sizes[kind]
        return int(sums[count, self.devices]), shares[::-1]

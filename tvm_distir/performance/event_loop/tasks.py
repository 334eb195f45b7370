# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent a graph of tasks as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tasks:
    """A graph of tasks, numbered in the order in which they are issued.

    A task waits for its dependencies and for the task issued before it on its stream. Members of
    a group start together, when all of them could, and end together after the longest of their
    durations.

    Attributes
    ----------
    duration : int64 array (n,)
        The duration in any integer unit of time, not negative.
    stream : int64 array (n,)
        Number of the stream in [0, stream_count), or -1 for a task that occupies none.
    stream_count : int
    dep_begin : int64 array (n + 1,)
        Task ``t`` depends on ``dep[dep_begin[t]:dep_begin[t + 1]]``.
    dep : int64 array
    group : int64 array (n,)
        Number of the group in [0, group_count), or -1.
    group_count : int
    """

    duration: Ints
    stream: Ints
    stream_count: int
    dep_begin: Ints
    dep: Ints
    group: Ints
    group_count: int

    @staticmethod
    def from_pairs(
        duration: Sequence[int] | Ints,
        stream: Sequence[int] | Ints,
        waits: Sequence[tuple[int, int]] | Ints,
        group: Sequence[int] | Ints | None = None,
    ) -> Tasks:
        """Make a graph from (task, dependency) pairs; the counts are the largest number plus 1."""
        durations = _ints(duration)
        streams = _ints(stream)
        groups = np.full(durations.size, -1, np.int64) if group is None else _ints(group)
        pairs = _ints(waits).reshape(-1, 2)
        order = np.argsort(pairs[:, 0], kind="stable")
        counts = np.bincount(pairs[:, 0], minlength=durations.size)
        begin = np.zeros(durations.size + 1, np.int64)
        np.cumsum(counts, out=begin[1:])
        return Tasks(
            durations,
            streams,
            int(streams.max(initial=-1)) + 1,
            begin,
            np.ascontiguousarray(pairs[order, 1]),
            groups,
            int(groups.max(initial=-1)) + 1,
        )

    @property
    def size(self) -> int:
        """Number of tasks."""
        return int(self.duration.size)


def _ints(values: object) -> Ints:
    return np.ascontiguousarray(np.asarray(values, dtype=np.int64))

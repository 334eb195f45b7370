# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the named schedules as the order of pipeline actions of each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .pipeline_actions import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Orders,
    PipelineAction,
    Work,
    stages_of,
    waits_for,
)


def in_turn(ranks: int, chunks: int) -> tuple[int, ...]:
    """Return the rank of each stage: round and round, as in interleaving."""
    return tuple(stage % ranks for stage in range(ranks * chunks))


def there_and_back(ranks: int, chunks: int) -> tuple[int, ...]:
    """Return the rank of each stage in a V, so that the first rank has the loss."""
    forth = list(range(ranks))
    return tuple(rank for c in range(chunks) for rank in (forth if c % 2 == 0 else forth[::-1]))


def gpipe(ranks: int, micro_batches: int, chunks: int = 1) -> Orders:
    """Order all forward before all backward passes (Huang et al. 2019)."""
    forward = [PipelineAction(FORWARD, i, c) for c in range(chunks) for i in range(micro_batches)]
    backward = [
        PipelineAction(BACKWARD, i, c)
        for c in reversed(range(chunks))
        for i in range(micro_batches)
    ]
    return [[*forward, *backward] for _ in range(ranks)]


def one_f_one_b(ranks: int, micro_batches: int, chunks: int = 1) -> Orders:
    """Order actions as 1F1B does (Narayanan et al. 2019, PipeDream-Flush).

    Rank s has at most ``ranks - s`` micro-batches in flight.
    """
    forward = [PipelineAction(FORWARD, i) for i in range(micro_batches)]
    backward = [PipelineAction(BACKWARD, i) for i in range(micro_batches)]
    result = []
    for rank in range(ranks):
        warm = min(ranks - 1 - rank, micro_batches)
        steady = forward[warm:] * 2
        steady[::2] = forward[warm:]
        steady[1::2] = backward[: micro_batches - warm]
        result.append([*forward[:warm], *steady, *backward[micro_batches - warm :]])
    return result


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Order actions of several interleaved stages per rank (Narayanan et al. 2021).

    The last group may be smaller: then its places stay empty.
    """
    groups = -(-micro_batches // ranks)
    total = groups * ranks * chunks

    def unit(phase: str, number: int) -> PipelineAction | None:
        group, rest = divmod(number, ranks * chunks)
        chunk, position = divmod(rest, ranks)
        micro = group * ranks + position
        if micro >= micro_batches:
            return None
        return PipelineAction(phase, micro, chunk if phase == FORWARD else chunks - 1 - chunk)

    result = []
    for rank in range(ranks):
        warm = min(total, (ranks - 1 - rank) * 2 + (chunks - 1) * ranks)
        units = [unit(FORWARD, k) for k in range(warm)]
        for k in range(total - warm):
            units += [unit(FORWARD, warm + k), unit(BACKWARD, k)]
        units += [unit(BACKWARD, k) for k in range(total - warm, total)]
        result.append([action for action in units if action is not None])
    return result


def zero_bubble(ranks: int, micro_batches: int, chunks: int = 1) -> Orders:
    """Order actions as ZB-H1 does (Qi et al. 2023): weight gradients fill the bubbles of 1F1B.

    Rank s makes them s micro-batches after those of activations: at most as many activations are
    held, until the gradients of weights, as 1F1B has in flight on its first rank.
    """
    result = []
    for rank, units in enumerate(one_f_one_b(ranks, micro_batches)):
        order: list[PipelineAction] = []
        for unit in units:
            order.append(unit)
            if unit.phase == BACKWARD and unit.micro >= rank:
                order.append(PipelineAction(WEIGHT, unit.micro - rank))
        left = range(max(micro_batches - rank, 0), micro_batches)
        result.append([*order, *(PipelineAction(WEIGHT, micro) for micro in left)])
    return result


def zero_bubble_v(ranks: int, micro_batches: int, chunks: int = 2) -> Orders:
    """Order actions as ZB-V does (Qi et al. 2023), with two stages per rank in a V.

    Every rank has at most ``2 * ranks`` activations of its half stages in flight.
    """
    return _greedy(there_and_back(ranks, 2), micro_batches, 2 * ranks)


def _greedy(rank_of: Sequence[int], micro_batches: int, most: int) -> Orders:
    """Choose a unit for each rank in turn, all of which take one step of time.

    A rank does what is ready: gradients of weights where as many are due as there are stages; a
    backward, the later stage first; a forward, if no more than ``most`` activations are then in
    flight, the later stage first; gradients of weights.
    """
    stages, ranks = len(rank_of), max(rank_of) + 1
    chunk_of = {stage: chunk for (_, chunk), stage in stages_of(rank_of).items()}
    rank_stages = [
        [stage for stage, owner in enumerate(rank_of) if owner == r] for r in range(ranks)
    ]
    done: set[Work] = set()
    next_of = {(p, s): 0 for p in (FORWARD, BACKWARD, WEIGHT) for s in range(stages)}
    orders: Orders = [[] for _ in rank_stages]
    left = 3 * stages * micro_batches

    def ready(phase: str, stage: int) -> bool:
        micro = next_of[phase, stage]
        if micro >= micro_batches:
            return False
        return done.issuperset(waits_for((phase, stage, micro), stages))

    def flying(rank: int) -> int:
        return sum(next_of[FORWARD, s] - next_of[BACKWARD, s] for s in rank_stages[rank])

    def pending(rank: int) -> int:
        return sum(next_of[BACKWARD, s] - next_of[WEIGHT, s] for s in rank_stages[rank])

    def first_ready(rank: int, phase: str) -> tuple[str, int] | None:
        return next(((phase, s) for s in reversed(rank_stages[rank]) if ready(phase, s)), None)

    def chosen(rank: int) -> tuple[str, int] | None:
        phases = [BACKWARD, FORWARD, WEIGHT] if flying(rank) < most else [BACKWARD, WEIGHT]
        if pending(rank) >= stages:
            phases.insert(0, WEIGHT)
        return next(filter(None, (first_ready(rank, phase) for phase in phases)), None)

    while left:
        picked = [chosen(rank) for rank in range(ranks)]
        if not any(picked):
            raise RuntimeError("no unit is ready")  # not with the bounds above
        for rank, pick in enumerate(picked):
            if pick is None:
                continue
            phase, stage = pick
            micro = next_of[pick]
            orders[rank].append(PipelineAction(phase, micro, chunk_of[stage]))
            done.add((phase, stage, micro))
            next_of[pick] += 1
            left -= 1
    return orders


ORDERS: dict[str, Callable[[int, int, int], Orders]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
    "zero_bubble_v": zero_bubble_v,
}
"""Return the named schedules: functions of (ranks, micro-batches, chunks)."""

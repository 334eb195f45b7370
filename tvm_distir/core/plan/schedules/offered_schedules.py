# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Look up schedules by name, including those that other packages offer as entry points."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tvm_distir.support import Offer, PlanError, Registry

from . import orders
from .listed import check_units, unfit
from .orders import ORDERS
from .pipeline_actions import Orders, PipelineAction

SCHEDULES = Registry(
    "tvm_distir.schedules",
    {kind: f"{orders.__name__}:{function.__name__}" for kind, function in ORDERS.items()},
)
"""Each entry of another package is a class that is made without arguments and does what
:class:`ScheduleOrder` says."""


class ScheduleOrder(Protocol):
    """The order of a schedule, as an entry point of :data:`SCHEDULES` provides it."""

    def orders(
        self, ranks: int, micro_batches: int, chunks: int
    ) -> Sequence[Sequence[tuple[str, int, int]]]:
        """Return the actions of each rank in order: phase, micro-batch, chunk.

        A ValueError states why there is no order for these numbers.
        """

    def rank_of(self, ranks: int, chunks: int) -> Sequence[int]:
        """Return the rank of each stage."""


def register_schedule(name: str, schedule: Callable[[], ScheduleOrder]) -> None:
    """Give a schedule a name in this process, as an entry point does for all processes.

    Parameters
    ----------
    name : str
    schedule : class
        Made without arguments; see :class:`ScheduleOrder`.

    Raises
    ------
    UsageError
        DIST0152 for a name that cannot be taken.

    Examples
    --------
    >>> class AllForward:
    ...     def orders(self, ranks, micro_batches, chunks):
    ...         return [[(p, i, 0) for p in "FB" for i in range(micro_batches)]] * ranks
    ...
    ...     def rank_of(self, ranks, chunks):
    ...         return list(range(ranks))
    >>> td.register_schedule("all_forward", AllForward)
    >>> "all_forward" in td.core.plan.schedules.offered_schedules.SCHEDULES
    True
    """
    SCHEDULES.register(name, schedule)


def offered_order(
    kind: str, ranks: int, micro_batches: int, chunks: int
) -> tuple[tuple[tuple[PipelineAction, ...], ...], tuple[int, ...]]:
    """Return the actions of each rank and the rank of each stage, by the package that offers them.

    Raises
    ------
    PlanError
        DIST0236 where the package has no order for these numbers.
    DependencyError
        DIST0114 where its class cannot be used, or its order does not run every phase of every
        micro-batch once, or waits for itself.
    """
    return _order_of(SCHEDULES.offered()[kind], kind, ranks, micro_batches, chunks)


@functools.lru_cache(maxsize=16)
def _order_of(
    offer: Offer, kind: str, ranks: int, micro_batches: int, chunks: int
) -> tuple[tuple[tuple[PipelineAction, ...], ...], tuple[int, ...]]:
    """Return the actions and stages of an offered schedule."""
    target: Any = offer.load()
    if not callable(target):
        raise offer.fault(f"it is not a class but {target!r}")
    try:
        schedule: ScheduleOrder = target()
        listed = schedule.orders(ranks, micro_batches, chunks)
        actions = tuple(
            tuple(PipelineAction(*map(_plain, action)) for action in order) for order in listed
        )
        stages = tuple(int(rank) for rank in schedule.rank_of(ranks, chunks))
    except ValueError as error:
        raise unfit(
            f"{kind} has no order of {micro_batches} micro-batches and {chunks} stages per rank on "
            f"{ranks} ranks: {error}",
            "Change these numbers, or choose another schedule.",
        ) from error
    except Exception as error:  # whatever the package's own code raises
        raise offer.fault(f"it raised {type(error).__name__}: {error}") from error
    if len(stages) != ranks * chunks:
        raise offer.fault(f"it places {len(stages)} stages, and there are {ranks * chunks}")
    try:
        check_units(actions, stages, micro_batches, ranks)
    except PlanError as error:
        raise offer.fault(f"its order is not valid: {error.what}") from error
    return actions, stages


def named_orders(kind: str, ranks: int, micro_batches: int, chunks: int) -> Orders:
    """Return the actions of each rank, of any schedule but ``custom``."""
    if kind in ORDERS:
        return ORDERS[kind](ranks, micro_batches, chunks)
    return [list(order) for order in offered_order(kind, ranks, micro_batches, chunks)[0]]


def _plain(value: Any) -> Any:
    """Return a number as int, where a package computes with NumPy."""
    return value if isinstance(value, str) else int(value)

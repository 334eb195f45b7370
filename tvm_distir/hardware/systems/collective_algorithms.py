# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the algorithms of collectives and look them up by name, including those of plugins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from tvm_distir.support import HardwareError, Registry, nearest

Quantity = float | npt.NDArray[Any]
"""A number, or an array of them."""

SUM, ALL_TO_ALL = "all_reduce", "all_to_all"
RINGED = (SUM, "all_gather", "reduce_scatter")
TIMED = (*RINGED, ALL_TO_ALL)
"""Collectives that a network lists the curves of; others are messages."""


class CollectiveAlgorithm(Protocol):
    """An algorithm of collectives, as an entry point of :data:`ALGORITHMS` provides it."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The collectives that it computes, from :data:`TIMED`."""

    def steps(self, kind: str, ranks: int) -> float:
        """Return the number of sequential messages, which does not fall with ``ranks``."""

    def sent_bytes(self, kind: str, total_bytes: Quantity, ranks: int, copied: float) -> Quantity:
        """Return the bytes that a device sends, which do not fall with ``ranks``.

        Parameters
        ----------
        kind : str
        total_bytes : int, or int64 array
            Size of the value whole: the operand of a reduce-scatter, else the result.
        ranks : int
        copied : float
            The share of a device's own block that passes its links like those of the others.
        """


@dataclass(frozen=True)
class Ring:
    """Every block goes around the ring: the fewest bytes, and a step per device and pass."""

    kinds: tuple[str, ...] = RINGED

    def steps(self, kind: str, ranks: int) -> float:
        """Return ``n - 1`` steps per pass; a sum passes twice."""
        return (2 if kind == SUM else 1) * (ranks - 1)

    def sent_bytes(self, kind: str, total_bytes: Quantity, ranks: int, copied: float) -> Quantity:
        """Return ``(n - 1) / n`` of the value per pass, and the copy of the own block."""
        return (2 if kind == SUM else 1) * total_bytes * (1.0 - (1.0 - copied) / ranks)


@dataclass(frozen=True)
class Tree:
    """A sum goes up a binary tree and its result down: few steps, but the whole value twice."""

    kinds: tuple[str, ...] = (SUM,)

    def steps(self, kind: str, ranks: int) -> float:
        """Return two steps per doubling of the devices."""
        return 2 * math.ceil(math.log2(ranks)) if ranks > 1 else 0

    def sent_bytes(self, kind: str, total_bytes: Quantity, ranks: int, copied: float) -> Quantity:
        """Return twice the value."""
        return 2.0 * total_bytes


@dataclass(frozen=True)
class Direct:
    """Every device exchanges blocks with each other device: a message to each of them.

    A sum is scattered and gathered that way (two-shot).
    """

    kinds: tuple[str, ...] = TIMED

    def steps(self, kind: str, ranks: int) -> float:
        """Return the messages that a device issues."""
        return ranks - 1

    def sent_bytes(self, kind: str, total_bytes: Quantity, ranks: int, copied: float) -> Quantity:
        """Return the bytes of the ring."""
        return (2 if kind == SUM else 1) * total_bytes * (1.0 - (1.0 - copied) / ranks)


@dataclass(frozen=True)
class OneShot:
    """Every device reads the whole values of all others and sums them itself."""

    kinds: tuple[str, ...] = (SUM,)

    def steps(self, kind: str, ranks: int) -> float:
        """Return the values that a device reads."""
        return ranks - 1

    def sent_bytes(self, kind: str, total_bytes: Quantity, ranks: int, copied: float) -> Quantity:
        """Return the value once per other device."""
        return total_bytes * float(ranks - 1)


@dataclass(frozen=True)
class InSwitch:
    """The switch sums (NVLink SHARP): each device sends the value once and receives it once."""

    kinds: tuple[str, ...] = (SUM,)

    def steps(self, kind: str, ranks: int) -> float:
        """Return the way to the switch and back."""
        return 2

    def sent_bytes(self, kind: str, total_bytes: Quantity, ranks: int, copied: float) -> Quantity:
        """Return the value."""
        return 1.0 * total_bytes


ALGORITHMS = Registry(
    "tvm_distir.collectives",
    {
        name: f"{__name__}:{kind.__name__}"
        for name, kind in {
            "ring": Ring, "tree": Tree, "direct": Direct, "one_shot": OneShot,
            "in_switch": InSwitch,
        }.items()
    },
)  # fmt: skip
"""Each represents a class that is made without arguments and does what
:class:`CollectiveAlgorithm` says; networks name them in the curves of ``intra_node``."""


def register_collective(name: str, algorithm: Callable[[], CollectiveAlgorithm]) -> None:
    """Give an algorithm of collectives a name in this process, for the curves of systems.

    Parameters
    ----------
    name : str
    algorithm : class
        Made without arguments; see :class:`CollectiveAlgorithm`.

    Raises
    ------
    UsageError
        DIST0152 for a name that cannot be taken.

    Examples
    --------
    >>> class RecursiveHalving:
    ...     kinds = ("all_reduce",)
    ...
    ...     def steps(self, kind, ranks):
    ...         return 2 * (ranks - 1).bit_length()
    ...
    ...     def sent_bytes(self, kind, total_bytes, ranks, copied):
    ...         return 2 * total_bytes * (1 - 1 / ranks)
    >>> td.register_collective("halving", RecursiveHalving)
    >>> "halving" in td.hardware.systems.collective_algorithms.ALGORITHMS
    True
    """
    ALGORITHMS.register(name, algorithm)


def algorithm_named(name: str) -> CollectiveAlgorithm:
    """Make an algorithm by name.

    Raises
    ------
    HardwareError
        DIST0703 no such algorithm.
    DependencyError
        DIST0114 another package offers it, and it is no such class or cannot be loaded.
    """
    if name not in ALGORITHMS:
        problem = f'there is no algorithm "{name}" of collectives'
        remedy = nearest(name, ALGORITHMS.names())
        raise HardwareError("DIST0703", problem, location="intra_node.curves", remedy=remedy)
    target: Any = ALGORITHMS.load(name)
    if name in ALGORITHMS.builtin:
        algorithm: CollectiveAlgorithm = target()
        return algorithm
    offer = ALGORITHMS.offered()[name]
    if not callable(target):
        raise offer.fault(f"it is not a class but {target!r}")
    try:
        algorithm = target()
    except Exception as error:  # whatever the package's own code raises
        raise offer.fault(f"it raised {type(error).__name__}: {error}") from error
    missing = [key for key in ("kinds", "steps", "sent_bytes") if not hasattr(algorithm, key)]
    if missing:
        raise offer.fault(f'the algorithm has no "{missing[0]}"')
    return algorithm

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Schedules of other packages are used by name, and refused where their order is not valid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_distir.core.plan.schedules.orders import ORDERS, there_and_back
from tvm_distir.core.plan.schedules.schedule import Schedule
from tvm_distir.support import DependencyError, PlanError

Install = Callable[[str, str, str], Path]

SOURCE = """
from tvm_distir.core.plan.schedules.orders import ORDERS, there_and_back


class Copied:
    def orders(self, ranks, micro_batches, chunks):
        if chunks != 2:
            raise ValueError("chunks is not 2")
        orders = ORDERS["zero_bubble_v"](ranks, micro_batches, 2)
        return [[tuple(action) for action in order] for order in orders]

    def rank_of(self, ranks, chunks):
        return there_and_back(ranks, chunks)


class Missing(Copied):
    def orders(self, ranks, micro_batches, chunks):
        return [order[:-1] for order in super().orders(ranks, micro_batches, 2)]


class Waiting(Copied):
    def orders(self, ranks, micro_batches, chunks):
        return [order[::-1] for order in super().orders(ranks, micro_batches, 2)]


class Misplaced(Copied):
    def rank_of(self, ranks, chunks):
        return [0]


class Raising(Copied):
    def orders(self, ranks, micro_batches, chunks):
        return {}["planted"]


NUMBER = 3
"""

POINTS = """
[tvm_distir.schedules]
copied = dist_s:Copied
missing = dist_s:Missing
waiting = dist_s:Waiting
misplaced = dist_s:Misplaced
raising = dist_s:Raising
number = dist_s:NUMBER
1f1b = dist_s:Raising
"""


@pytest.fixture
def package(install: Install) -> Path:
    """A package with a copy of ZB-V, and with names that are no schedules."""
    return install("dist_s", SOURCE, POINTS)


def test_a_schedule_of_a_package_has_its_order_and_places(package: Path) -> None:
    schedule = Schedule.parse("copied:stages=3,micro_batches=5,chunks=2")
    assert schedule.orders == ORDERS["zero_bubble_v"](3, 5, 2)
    assert schedule.rank_of == there_and_back(3, 2)
    assert schedule.splits_backward and schedule.stage_count == 6
    assert Schedule.from_dict(schedule.to_dict()) == schedule


def test_a_builtin_name_wins(package: Path) -> None:
    assert Schedule("1f1b", 2, 4).orders == ORDERS["1f1b"](2, 4, 1)


def test_numbers_without_an_order_are_refused(package: Path) -> None:
    with pytest.raises(PlanError, match="chunks is not 2") as caught:
        Schedule("copied", 3, 5)
    assert caught.value.code == "DIST0236"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "units are missing"),
        ("waiting", "waits for"),
        ("misplaced", "1 stages, and there are 4"),
        ("raising", "KeyError: 'planted'"),
        ("number", "but 3"),
    ],
)
def test_a_package_without_the_schedule_is_named(package: Path, name: str, said: str) -> None:
    with pytest.raises(DependencyError, match="dist_s") as caught:
        Schedule(name, 2, 4, 2)
    assert caught.value.code == "DIST0114" and said in caught.value.what


def test_an_unknown_schedule_has_the_nearest_name(package: Path) -> None:
    with pytest.raises(PlanError, match='"copied"'):
        Schedule("copie", 2, 4)

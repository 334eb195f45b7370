# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Algorithms of collectives of other packages are used by the networks that name them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_distir.hardware.systems import tiers
from tvm_distir.hardware.systems.collective_algorithms import ALGORITHMS, algorithm_named
from tvm_distir.hardware.systems.network_reader import NETWORKS
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_reader import DATA
from tvm_distir.support import DependencyError, HardwareError

Install = Callable[[str, str, str], Path]

SOURCE = """
class Halving:
    kinds = ("all_reduce",)

    def steps(self, kind, ranks):
        return 2 * (ranks - 1).bit_length()

    def sent_bytes(self, kind, total_bytes, ranks, copied):
        return 2 * total_bytes * (1 - 1 / ranks)

class Empty:
    kinds = ()

class Broken:
    def __init__(self):
        raise ValueError("planted")

NUMBER = 3
"""

POINTS = """
[tvm_distir.collectives]
halving = dist_c:Halving
empty = dist_c:Empty
broken = dist_c:Broken
number = dist_c:NUMBER
missing = dist_c:Nothing
ring = dist_c:Broken
"""


@pytest.fixture
def package(install: Install) -> Path:
    """A package that offers an algorithm, and four names that are none."""
    tiers._ALGORITHM.cache_clear()
    return install("dist_c", SOURCE, POINTS)


def system(curve: dict[str, object] | None) -> System:
    """Eight H100 in a node, with one more curve."""
    data = json.loads((DATA / "dgx-h100-megatron.json").read_text())
    node = json.loads((NETWORKS / "hgx-h100.json").read_text())["intra_node"]
    node["curves"]["nccl"] += [] if curve is None else [curve]
    return System.from_dict({**data, "intra_node": node})


CURVE = {
    "algorithm": "halving", "kind": "all_reduce", "setup_us": 3.0, "hop_us": 0.5,
    "bandwidth_GBps": 400.0,
}  # fmt: skip


def test_a_curve_of_a_packages_algorithm_is_taken_where_it_is_fastest(package: Path) -> None:
    """Three doublings there and back, and the bytes of a ring."""
    usual, more = system(None), system(CURVE)
    for size in (2**10, 2**25):
        expected = 3e-6 + 6 * 0.5e-6 + 2 * size * 7 / 8 / 400e9
        before = usual.collective_time_s("all_reduce", size, range(8))
        assert expected < before
        assert more.collective_time_s("all_reduce", size, range(8)) == pytest.approx(expected)
        gathers = [each.collective_time_s("all_gather", size, range(8)) for each in (usual, more)]
        assert gathers[0] == gathers[1]


def test_a_builtin_name_wins(package: Path) -> None:
    assert algorithm_named("ring").steps("all_gather", 8) == 7
    assert {"ring", "tree", "direct", "one_shot", "in_switch", "halving"} <= set(ALGORITHMS.names())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("empty", 'no "steps"'),
        ("broken", "ValueError: planted"),
        ("number", "but 3"),
        ("missing", "Nothing"),
    ],
)
def test_a_package_without_the_algorithm_is_named(package: Path, name: str, said: str) -> None:
    with pytest.raises(DependencyError) as caught:
        algorithm_named(name)
    assert caught.value.code == "DIST0114" and said in caught.value.what


def test_an_unknown_algorithm_has_the_nearest_name() -> None:
    with pytest.raises(HardwareError, match='"ring"'):
        algorithm_named("rin")


def test_a_curve_of_a_broken_algorithm_keeps_the_code_of_its_package(package: Path) -> None:
    with pytest.raises(DependencyError, match="planted") as caught:
        system({**CURVE, "algorithm": "broken"})
    assert caught.value.code == "DIST0114"

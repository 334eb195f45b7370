# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Kernel profiles of other packages are known by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_distir.interface.command import main
from tvm_distir.performance.fusion.profile import Profile, profile_names
from tvm_distir.support.errors.tree import DependencyError, HardwareError

Install = Callable[[str, str, str], Path]

SOURCE = """
def mine():
    return {"schema_version": 1, "name": "mine", "base": "fused", "graphs": True}

def wrong():
    return {"schema_version": 1, "name": "wrong", "graph": True}

def fused():
    return {"schema_version": 1, "name": "theirs"}

NUMBER = 3
"""

POINTS = """
[tvm_distir.kernels]
mine = dist_k:mine
wrong = dist_k:wrong
number = dist_k:NUMBER
fused = dist_k:fused
"""


@pytest.fixture
def package(install: Install) -> Path:
    return install("dist_k", SOURCE, POINTS)


def test_a_profile_of_a_package_is_loaded_by_name(package: Path) -> None:
    assert profile_names()[-3:] == ("mine", "number", "wrong")
    profile = Profile.load("mine")
    assert (profile.name, profile.graphs) == ("mine", True)
    assert profile.rules == Profile.load("fused").rules
    assert Profile.load("fused").name == "fused"


def test_wrong_profiles_of_a_package_are_named(package: Path) -> None:
    with pytest.raises(HardwareError, match="dist_k, kernel profile wrong") as caught:
        Profile.load("wrong")
    assert caught.value.code == "DIST0703"
    with pytest.raises(DependencyError, match="kernel profile but 3"):
        Profile.load("number")


def test_advice_leaves_out_wrong_profiles(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package with a fault does not end the analysis of a step that does not name it."""
    words = ["analyze", "zoo:gpt?size=tiny", "--strategy", "megatron", "--mesh", "tp=2"]
    assert main([*words, "--system", "h100"]) == 0
    assert "predicted speedup" in capsys.readouterr().out

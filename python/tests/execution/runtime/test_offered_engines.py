# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Engines of other packages are made by name, and refused where they are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_distir.execution.runtime.engines.registry import engine
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.support import DependencyError, EngineError

SOURCE = """
from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine


class Mine(VirtualEngine):
    name = "mine"


class Broken:
    def __init__(self):
        raise ValueError("planted")


Number = int
"""

POINTS = """
[tvm_distir.engines]
mine = dist_e:Mine
broken = dist_e:Broken
number = dist_e:Number
virtual = dist_e:Broken
"""


@pytest.fixture
def package(install: Callable[[str, str, str], Path]) -> Path:
    """A package with an engine, and with names that are none."""
    return install("dist_e", SOURCE, POINTS)


def test_an_engine_of_a_package_is_made_by_name(package: Path) -> None:
    created = engine("mine")
    assert isinstance(created, VirtualEngine) and created.name == "mine"
    assert engine("virtual").name == "virtual", "names of this package win"


@pytest.mark.parametrize(("name", "said"), [("broken", "ValueError: planted"), ("number", "0")])
def test_a_package_without_the_engine_is_named(package: Path, name: str, said: str) -> None:
    with pytest.raises(DependencyError, match="dist_e") as caught:
        engine(name)
    assert caught.value.code == "DIST0114" and said in caught.value.what


def test_names_of_packages_are_proposed(package: Path) -> None:
    with pytest.raises(EngineError, match='"mine"'):
        engine("min")

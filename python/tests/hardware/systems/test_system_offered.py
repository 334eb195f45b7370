# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Systems of other packages are known by name, whatever form a package gives them in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plain_systems import PLAIN_A100
from tvm_distir.hardware.systems.system import System
from tvm_distir.hardware.systems.system_reader import system_names
from tvm_distir.support.errors.tree import DependencyError, HardwareError

Install = Callable[[str, str, str], Path]
TEXT = Path(PLAIN_A100).read_text().replace('"name": "plain-a100"', '"name": "mine"')

SOURCE = """
import json
from pathlib import Path

HERE = Path(__file__).parent
FILE = HERE / "of-a-file.json"
FOLDER = str(HERE)

def data():
    return json.loads(FILE.read_text())

def path():
    return FILE

def broken():
    raise ValueError("planted")

NUMBER = 3
"""

POINTS = """
[tvm_distir.systems]
of-a-file = dist_s:FILE
in-a-folder = dist_s:FOLDER
data = dist_s:data
path = dist_s:path
beside = dist_s_data
missing = dist_s:FOLDER
broken = dist_s:broken
number = dist_s:NUMBER
a100 = dist_s:broken
dgx-a100 = dist_s:broken
"""


@pytest.fixture
def package(install: Install) -> Path:
    """A package that offers systems in every form; ``dist_s_data`` is a folder without Python."""
    folder = install("dist_s", SOURCE, POINTS)
    (folder / "dist_s_data").mkdir()
    for path in ("of-a-file", "in-a-folder", "dist_s_data/beside"):
        (folder / f"{path}.json").write_text(TEXT)
    return folder


@pytest.mark.parametrize("name", ["of-a-file", "in-a-folder", "data", "path", "beside"])
def test_a_system_of_a_package_is_loaded_by_name(package: Path, name: str) -> None:
    assert name in system_names()
    assert System.load(name) == System.from_dict(json.loads(TEXT))


@pytest.mark.parametrize(
    ("name", "said"),
    [("missing", "missing.json"), ("broken", "ValueError: planted"), ("number", "but 3")],
)
def test_a_package_without_the_system_is_named(package: Path, name: str, said: str) -> None:
    with pytest.raises(DependencyError) as caught:
        System.load(name)
    assert caught.value.code == "DIST0114" and said in caught.value.what
    assert caught.value.location.startswith("dist_s, entry point")


def test_own_names_win(package: Path) -> None:
    assert System.load("a100").name == "a100" and System.load("dgx-a100").name == "dgx-a100"
    assert system_names().count("a100") == 1 and "dgx-a100" not in system_names()


def test_an_unknown_name_lists_those_of_packages_too(package: Path) -> None:
    with pytest.raises(HardwareError, match="DIST0701") as caught:
        System.load("in-a-foldr")
    assert 'Did you mean "in-a-folder"?' in caught.value.remedy
    assert "of-a-file" in caught.value.remedy


def test_a_wrong_value_is_found_in_the_packages_file(package: Path) -> None:
    (package / "in-a-folder.json").write_text(TEXT.replace("launch_floor_us", "launch_floor"))
    with pytest.raises(HardwareError, match="DIST0703") as caught:
        System.load("in-a-folder")
    assert "in-a-folder.json" in caught.value.location

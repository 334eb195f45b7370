# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Dataclasses are read from JSON data strictly, and all faults are reported with their places."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from tvm_distir.support import (
    Check,
    Count,
    HardwareError,
    InvalidValue,
    Keys,
    KeysByKind,
    Positive,
    Text,
    check_version,
    one_of,
    read_model,
)


def _refuse(place: str, label: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0703", label, location=place, remedy=remedy)


def _even(number: int) -> int:
    if number % 2:
        raise InvalidValue(f"{number} is odd", "Give an even number.")
    return number


@dataclass(frozen=True)
class Wheel:
    name: Text
    kind: Literal["front", "back"] = "front"
    spokes: Annotated[Count, Check(_even)] = 0
    makers: tuple[Annotated[str, one_of(("north", "south"))], ...] = ()


_ANIMALS = KeysByKind(
    {
        "dog": Keys({"kind": str, "teeth": Count}),
        "bird": Keys({"kind": str, "wing": Wheel, "teeth": Positive}, optional=["teeth"]),
    }
)


@dataclass(frozen=True)
class Cart:
    wheels: tuple[Wheel, ...]
    weight: Positive = 1.0
    load: float | None = None
    kind: Text = field(default="any", metadata={"alias": "class"})
    doors: Annotated[Mapping[str, Wheel], Keys({"left": Wheel, "right": Wheel}, ["right"])] = field(
        default_factory=dict
    )
    spare: Wheel | None = None
    flag: bool = False
    pair: tuple[int, int] = (0, 0)
    animals: tuple[Annotated[Any, _ANIMALS], ...] = ()


def _faults(data: Any) -> list[tuple[str, str, str]]:
    with pytest.raises(HardwareError) as caught:
        read_model(Cart, data, "c.json", _refuse)
    assert caught.value.code == "DIST0703"
    return [(v.location, v.what, v.remedy) for v in caught.value.violations]


def test_a_dataclass_is_read() -> None:
    data = {
        "wheels": [{"name": "a", "spokes": 2, "makers": ["north"]}, {"name": "b", "kind": "back"}],
        "weight": 3,
        "class": "wide",
        "doors": {"left": {"name": "c"}},
    }
    cart = read_model(Cart, data, "c.json", _refuse)
    front, back = Wheel("a", spokes=2, makers=("north",)), Wheel("b", "back")
    assert cart == Cart((front, back), 3.0, kind="wide", doors={"left": Wheel("c")})
    assert isinstance(cart.weight, float)


def test_all_faults_are_reported_with_their_places() -> None:
    data = {
        "wheels": [{"name": "a", "spoke": 1}, {"spokes": 3}, 7],
        "weight": -1,
        "doors": {"middle": {}, "left": {"name": "", "kind": "bakc", "makers": ["nroth"]}},
    }
    faults = {place: (label, remedy) for place, label, remedy in _faults(data)}
    assert faults["c.json/wheels/0/spoke"] == ('unknown key "spoke"', 'Did you mean "spokes"?')
    assert faults["c.json/wheels/1/spokes"] == ("3 is odd", "Give an even number.")
    assert faults["c.json/wheels/1/name"][0] == "a key is missing"
    assert faults["c.json/wheels/2"][0] == "7 is not an object"
    assert "greater than 0" in faults["c.json/weight"][1]
    assert faults["c.json/doors/middle"] == ('unknown key "middle"', "Known: left, right.")
    assert faults["c.json/doors/left/kind"][1] == 'Did you mean "back"?'
    assert faults["c.json/doors/left/makers/0"][1] == 'Did you mean "north"?'
    assert "c.json/doors/left/name" in faults
    assert len(faults) == 9


def test_a_misspelt_key_is_one_fault() -> None:
    assert _faults({"weels": []}) == [
        ("c.json/weels", 'unknown key "weels"', 'Did you mean "wheels"?')
    ]


def test_the_kind_of_an_object_decides_its_keys() -> None:
    dog, bird = {"kind": "dog", "teeth": 3}, {"kind": "bird", "wing": {"name": "w"}}
    assert read_model(Cart, {"wheels": [], "animals": [dog, bird]}, "c", _refuse).animals == (
        dog,
        {"kind": "bird", "wing": Wheel("w")},
    )
    wrong = [
        {"kind": "bird", "wing": {"nmae": "w"}, "teeth": "2"},
        {"kind": "dog", "wing": {}, "teeth": True},
        {"kind": "brid"},
        {"teeth": 1},
        {"kind": "dog", "tooth": 1},
        7,
    ]
    faults = {place: remedy for place, _, remedy in _faults({"wheels": [], "animals": wrong})}
    assert list(faults) == [
        "c.json/animals/0/wing/nmae",
        "c.json/animals/0/teeth",
        "c.json/animals/1/teeth",
        "c.json/animals/1/wing",
        "c.json/animals/2",
        "c.json/animals/3",
        "c.json/animals/4/tooth",
        "c.json/animals/5",
    ]
    assert faults["c.json/animals/0/wing/nmae"] == 'Did you mean "name"?'
    assert faults["c.json/animals/1/wing"] == "Known: kind, teeth."
    assert faults["c.json/animals/2"] == 'Did you mean "bird"?'
    assert faults["c.json/animals/4/tooth"] == 'Did you mean "teeth"?'


def test_the_nearest_key_is_known_behind_null_and_in_tuples() -> None:
    place, _, remedy = _faults({"wheels": [], "spare": {"name": "a", "mkaers": []}})[0]
    assert (place, remedy) == ("c.json/spare/mkaers", 'Did you mean "makers"?')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("weight", 1e30),
        ("weight", 10**400),
        ("weight", "1"),
        ("weight", True),
        ("weight", None),
        ("load", float("nan")),
        ("flag", 1),
        ("flag", "yes"),
        ("class", 3),
        ("class", b"wide"),
        ("pair", [1]),
        ("pair", [1, 2, 3]),
        ("pair", [1.0, 2]),
        ("pair", {"0": 1}),
        ("wheels", {}),
        ("wheels", None),
        ("spare", []),
    ],
)
def test_values_are_not_converted(key: str, value: Any) -> None:
    assert all("c.json" in place for place, _, _ in _faults({"wheels": [], key: value}))


@pytest.mark.parametrize("value", [[], None, 3, "text", True])
def test_what_is_no_object_is_refused(value: Any) -> None:
    assert _faults(value)[0][0] == "c.json"


@pytest.mark.parametrize("depth", [300, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    assert _faults({"wheels": value})[0][0].startswith("c.json")


def test_an_integer_that_python_does_not_write_is_refused() -> None:
    assert _faults({"wheels": [], "load": 10**5000})[0][0].startswith("c.json")


@pytest.mark.parametrize("data", [{}, {"schema_version": 2}, {"schema_version": True}, [], None])
def test_another_version_is_refused(data: Any) -> None:
    with pytest.raises(HardwareError, match="DIST0703"):
        check_version(data, "c.json", _refuse, 1)


def test_pydantic_is_imported_only_where_a_file_is_read() -> None:
    code = (
        "import sys, tvm_distir as td; from tvm_distir.interface.command import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "before = 'pydantic' in sys.modules; td.System.load('dgx-a100')\n"
        "print(); print(json.dumps([before, 'pydantic' in sys.modules]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"import json\n{code}"], capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout.splitlines()[-1]) == [False, True]

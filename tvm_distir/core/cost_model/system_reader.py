# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read systems from JSON and check each key and number."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Ge

from tvm_distir.support import (
    Fraction,
    HardwareError,
    JsonValue,
    Keys,
    NotNegative,
    Positive,
    Text,
    check_version,
    nearest,
    read_json,
    read_model,
)

from . import system_family
from .constants import DEFAULTS, FORMS, MEANINGS, Constant, value_of
from .hardware import Device, Efficiency, HostLink, InterNode, IntraNode, OuterTier, Peaks
from .network_reader import LINKS, read_links
from .offered import offered, offered_names

SCHEMA_VERSION = 1
DATA = Path(__file__).parent / "data"

Made = TypeVar("Made")


@dataclass(frozen=True)
class _ConstantEntry(Constant):
    """A constant in a file, which repeats the unit and the meaning for people."""

    unit: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class _FractionEntry(_ConstantEntry):
    """A constant that is a fraction of a peak."""

    value: Fraction


@dataclass(frozen=True)
class _SlowdownEntry(_ConstantEntry):
    """A constant by which times are multiplied, which does not shorten them."""

    value: Annotated[NotNegative, Ge(1)]


_CONSTANTS = {
    name: _FractionEntry if meaning.unit.startswith("fraction") else _ConstantEntry
    for name, meaning in MEANINGS.items()
} | {"overlap_slowdown": _SlowdownEntry}


@dataclass(frozen=True)
class _RatedDevice:
    """A device in a file with constants, which determine the other fields of :class:`Device`."""

    name: Text
    memory_capacity_GiB: Positive
    memory_bandwidth_GBps: Positive
    matmul_TFLOPs: Peaks
    vector_TFLOPs: Peaks


@dataclass(frozen=True, kw_only=True)
class _SystemFile:
    """The content of a file without constants."""

    name: Text
    description: str = ""
    device: Device
    intra_node: IntraNode
    inter_node: InterNode
    host_link: HostLink | None = None
    kernels: Text = "eager"
    sources: Mapping[str, Text] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _ConstantsFile(_SystemFile):
    """The content of a file with constants."""

    device: _RatedDevice  # type: ignore[assignment]
    constants: Annotated[Mapping[str, _ConstantEntry], Keys(_CONSTANTS, optional=DEFAULTS)]


def _wrong(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0703", what, place=place, remedy=remedy)


def _no_json(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0702", what, place=place, remedy=remedy)


def system_names() -> tuple[str, ...]:
    """Return the names of the built-in systems, then of those of other packages."""
    builtin_names = _own_names()
    return (*builtin_names, *(name for name in offered_names() if name not in builtin_names))


def _own_names() -> list[str]:
    return sorted(path.stem for path in DATA.glob("*.json"))


def load(name_or_path: str | Path, make: Callable[..., Made]) -> Made:
    """Read a system and pass its parts to ``make``; see :meth:`.system.System.load`."""
    text = str(name_or_path)
    path = Path(name_or_path)
    if text in _own_names():
        path = DATA / f"{text}.json"
    elif text in offered_names():
        source = offered(text)
        if not isinstance(source, Path):
            data, place = source
            return parse(data, place, make)
        path = source
    if not os.path.exists(path):
        known = system_names()
        raise HardwareError(
            "DIST0701",
            f"there is no system {text!r}, nor a file of that name",
            place="system",
            remedy=f"{nearest(text, known)} Available: {', '.join(known)}. "
            "Or give the path of a JSON file.",
        )
    return parse(read_json(path, _no_json, repeated=_wrong), str(path), make)


def parse(data: Any, place: str, make: Callable[..., Made]) -> Made:
    """Pass the parts of a system in plain data to ``make``."""
    if isinstance(data, Mapping) and data.get("schema_version") == system_family.SCHEMA_VERSION:
        return system_family.compose(data, place, make)
    content = check_version(data, place, _wrong, SCHEMA_VERSION)
    near = content.get("intra_node")
    outer_tiers: tuple[OuterTier, ...] = ()
    if "tiers" in content or (isinstance(near, Mapping) and "curves" in near):
        links = read_links(JsonValue(content, place, _wrong))
        outer_tiers = links.outer_tiers
        content = {key: value for key, value in content.items() if key not in LINKS}
        content["intra_node"] = asdict(links.intra_node)
        content["inter_node"] = asdict(links.inter_node)
    form = _ConstantsFile if "constants" in content else _SystemFile
    parts = {**vars(read_model(form, content, place, _wrong)), "outer_tiers": outer_tiers}
    if form is _SystemFile:
        return make(**parts)
    constants = {name: Constant(c.value, c.source) for name, c in parts["constants"].items()}
    memory = constants["memory_efficiency"].value
    efficiency = {
        name: Efficiency(
            value_of(constants, form.efficiency) if form.efficiency else memory, memory
        )
        for name, form in FORMS.items()
    }
    floor = constants["kernel_gap_us"].value
    device = Device(**vars(parts["device"]), launch_floor_us=floor, efficiency=efficiency)
    return make(**{**parts, "constants": constants, "device": device})

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read systems from JSON and check each key and number."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tvm_distir.hardware.systems import system_family
from tvm_distir.support import Positive, Text, check_version, read_json

from .constants import KERNEL_TIME_MODELS, AllConstants, value_of
from .efficiency import Efficiency
from .faults import SLOWEST, no_json, unequal, unknown_name, wrong
from .hardware import Device, HostLink, Peaks, PowerLaws
from .network_reader import LinkKeys, read_linked
from .offered import offered, offered_names

SCHEMA_VERSION = 1
DATA = Path(__file__).parent / "data"

Made = TypeVar("Made")


@dataclass(frozen=True)
class _RatedDevice:
    """A device in a file with constants, which determine the other fields of :class:`Device`."""

    name: Text
    memory_capacity_GiB: Positive
    memory_bandwidth_GBps: Positive
    matmul_TFLOPs: Peaks
    vector_TFLOPs: Peaks
    kernel_times: Mapping[str, PowerLaws] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _SystemFile(LinkKeys):
    """The content of a file without constants."""

    name: Text
    description: str = ""
    device: Device
    host_link: HostLink | None = None
    kernels: Text = "eager"
    sources: Mapping[str, Text] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _ConstantsFile(_SystemFile):
    """The content of a file with constants."""

    device: _RatedDevice  # type: ignore[assignment]
    constants: AllConstants


def system_names() -> tuple[str, ...]:
    """Return the names of the built-in systems, then of those of other packages."""
    builtin_names = _own_names()
    known = {*builtin_names, *system_aliases()}
    return (*builtin_names, *(name for name in offered_names() if name not in known))


def _known_name(text: str) -> str:
    """Return the name of a system that differs in case, blanks or its maker, or the text itself."""
    if text in system_names():
        return text
    name = re.sub(r"[\s_]+", "-", text.strip().lower())
    name = re.sub(r"^(nvidia|amd|google)-", "", name)
    return name if name in (*system_names(), *system_aliases()) else text


def _own_names() -> list[str]:
    return sorted(path.stem for path in DATA.glob("*.json"))


@cache
def system_aliases() -> Mapping[str, str]:
    """Return further names of built-in systems, and the system that each of them means."""
    return dict(read_json(DATA / "aliases" / "systems.json", no_json, repeated=wrong))


def load(name_or_path: str | Path, make: Callable[..., Made]) -> Made:
    """Read a system and pass its parts to ``make``; see :meth:`.system.System.load`."""
    path = Path(name_or_path)
    text = str(name_or_path) if os.path.exists(path) else _known_name(str(name_or_path))
    if text in _own_names():
        path = DATA / f"{text}.json"
    elif text in system_aliases():
        path = DATA / f"{system_aliases()[text]}.json"
        return parse({**read_json(path, no_json, repeated=wrong), "name": text}, str(path), make)
    elif text in offered_names():
        source = offered(text)
        if not isinstance(source, Path):
            data, location = source
            return parse(data, location, make)
        path = source
    parts = [re.sub(r"^\d+x", "", part) for part in text.split("+")]
    if len(parts) > 1 and {*parts} <= {*system_names(), *system_aliases()}:
        problem = f'"{text}" names several types of devices, but no stages of them'
        how = f'Name those of equal numbers of pipeline stages, in order: "{",".join(parts)}"'
        raise unequal("system", problem, f"{how}. {SLOWEST}")
    if not os.path.exists(path):
        problem = f"there is no system {text!r}, nor a file of that name"
        remedy = "Or give the path of a JSON file; the numbers of a data sheet are enough."
        raise unknown_name(text, system_names(), problem, "system", system_aliases(), remedy)
    data = read_json(path, no_json, repeated=wrong)
    if isinstance(data, Mapping):  # a file without a name is named as the file
        data = {"name": Path(path).stem, **data}
    return parse(data, str(path), make)


def parse(data: Any, location: str, make: Callable[..., Made]) -> Made:
    """Pass the parts of a system in plain data to ``make``."""
    newest = system_family.SCHEMA_VERSION
    if isinstance(data, Mapping) and data.get("schema_version", newest) == newest:
        return system_family.compose(data, location, make)
    content = check_version(data, location, wrong, SCHEMA_VERSION, newest)
    file_model = _ConstantsFile if "constants" in content else _SystemFile
    file, links = read_linked(file_model, content, location)
    parts = {**vars(file), **vars(links)}
    del parts["tiers"]
    if not isinstance(file, _ConstantsFile):
        return make(**parts)
    constants = file.constants
    memory = constants["memory_efficiency"].value
    efficiency = {
        name: Efficiency(
            value_of(constants, model.efficiency) if model.efficiency else memory, memory
        )
        for name, model in KERNEL_TIME_MODELS.items()
    }
    floor = constants["kernel_gap_us"].value
    device = Device(**vars(file.device), launch_floor_us=floor, efficiency=efficiency)
    return make(**{**parts, "device": device})

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read systems from JSON and check each key and number."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tvm_distir.support import HardwareError, JsonValue, nearest, read_json

from .constants import DEFAULTS, FORMS, MEANINGS, Constant, value_of
from .device_reader import fraction, peaks
from .hardware import KERNEL_CLASSES, LIKE, VIEW, Device, Efficiency
from .network_reader import LINKS, read_host, read_links
from .offered import offered, offered_names

SCHEMA_VERSION = 1
DATA = Path(__file__).parent / "data"

_TOP = (
    "schema_version", "name", "description", "device", *LINKS, "sources", "kernels", "constants",
    "host_link",
)  # fmt: skip
_DEVICE = (
    "name", "memory_capacity_GiB", "memory_bandwidth_GBps", "launch_floor_us", "matmul_TFLOPs",
    "vector_TFLOPs", "efficiency",
)  # fmt: skip
_BY_CONSTANTS = ("launch_floor_us", "efficiency")
_CONSTANT = ("value", "unit", "meaning", "source")
_PRICED = tuple(
    kernel_class
    for kernel_class in KERNEL_CLASSES
    if kernel_class != VIEW and kernel_class not in LIKE
)

Made = TypeVar("Made")


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
    optional = ("description", "sources", "kernels", "constants", "host_link", *LINKS)
    top = JsonValue(data, place, _wrong).object(_TOP, optional=optional)
    top["schema_version"].version(SCHEMA_VERSION)
    sources = top["sources"].object().fields() if "sources" in top else ()
    constants = _constants(top["constants"]) if "constants" in top else {}
    links = read_links(top)
    return make(
        name=top["name"].text(),
        description=top["description"].text(empty=True) if "description" in top else "",
        kernels=top["kernels"].text() if "kernels" in top else "eager",
        constants=constants,
        device=_device(top["device"], constants),
        intra_node=links.intra_node,
        inter_node=links.inter_node,
        outer_tiers=links.outer_tiers,
        host_link=read_host(top["host_link"]) if "host_link" in top else None,
        sources={key: source.text() for key, source in sources},
    )


def _device(data: JsonValue, constants: Mapping[str, Constant]) -> Device:
    fields = data.object([k for k in _DEVICE if not (constants and k in _BY_CONSTANTS)])
    floor = constants["kernel_gap_us"].value if constants else None
    return Device(
        name=fields["name"].text(),
        memory_capacity_GiB=fields["memory_capacity_GiB"].number(),
        memory_bandwidth_GBps=fields["memory_bandwidth_GBps"].number(),
        launch_floor_us=fields["launch_floor_us"].number(least=0.0) if floor is None else floor,
        matmul_TFLOPs=peaks(fields["matmul_TFLOPs"]),
        vector_TFLOPs=peaks(fields["vector_TFLOPs"]),
        efficiency=_by_constants(constants) if constants else _efficiencies(fields["efficiency"]),
    )


def _by_constants(constants: Mapping[str, Constant]) -> dict[str, Efficiency]:
    """Return the fractions of the peaks that the constants determine."""
    memory = constants["memory_efficiency"].value
    return {
        name: Efficiency(
            value_of(constants, form.efficiency) if form.efficiency else memory, memory
        )
        for name, form in FORMS.items()
    }


def _constants(data: JsonValue) -> dict[str, Constant]:
    """Return all constants of the model, each within its bounds."""
    fields = data.object(MEANINGS, optional=DEFAULTS)
    out = {}
    for name, meaning in MEANINGS.items():
        if name not in fields:
            continue
        entry = fields[name].object(_CONSTANT, optional=("unit", "meaning"))
        value = entry["value"].number(least=0.0)
        if meaning.unit.startswith("fraction") and not 0 < value <= 1:
            raise entry["value"].wrong(f"{value} of a peak", "Give a fraction up to 1.")
        if name == "overlap_slowdown" and value < 1:
            raise entry["value"].wrong(f"{value} times as long", "Give 1 or more.")
        out[name] = Constant(value, entry["source"].text())
    return out


def _efficiencies(data: JsonValue) -> dict[str, Efficiency]:
    fields = data.object(_PRICED)
    return {
        kernel_class: Efficiency(
            *(fraction(fields[kernel_class].object(_FRACTIONS)[key]) for key in _FRACTIONS)
        )
        for kernel_class in _PRICED
    }


_FRACTIONS = ("flops", "bandwidth")

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read devices from JSON: the numbers of a data sheet, and the times of kernels by class."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_distir.support import HardwareError, JsonValue, nearest, read_json

from .constants import DEVICE_CONSTANTS, Constant
from .hardware import ASSUMED, KERNEL_CLASSES, LIKE, VIEW, Device, Entry, PowerForm

SCHEMA_VERSION = 1
DEVICES = Path(__file__).parent / "data" / "devices"

_TOP = (
    "schema_version", "name", "memory_capacity_GiB", "memory_bandwidth_GBps", "matmul_TFLOPs",
    "vector_TFLOPs", "kernel_times", "constants", "sources", "price_per_hour", "watts",
)  # fmt: skip
_OPTIONAL = ("kernel_times", "constants", "sources", "price_per_hour", "watts")
_FORM = ("t0_us", "arithmetic", "traffic", "power", "source")
_CLASSES = tuple(name for name in KERNEL_CLASSES if name != VIEW)
_LIKE = {**LIKE, "conv": "matmul", "gather": "memory"}
DEFAULT_FORMS: Mapping[str, PowerForm] = {
    "matmul": PowerForm(3.0, 0.75, 0.8, 2.7, f"{ASSUMED}: near h100-sxm"),
    "attention": PowerForm(15.0, 0.55, 0.5, 1.0, f"{ASSUMED}: near h100-sxm"),
    "attention_backward": PowerForm(15.0, 0.45, 0.5, 1.0, f"{ASSUMED}: near a100-pcie and b200"),
    "memory": PowerForm(2.0, 0.85, 0.85, 8.0, ASSUMED),
}
"""Forms of kernel classes that the file of a device does not list: a data sheet makes a device."""
DEFAULT_CONSTANTS: Mapping[str, Constant] = {
    "sustained": Constant(0.93, f"{ASSUMED} as h100-sxm"),
    "burst_us": Constant(0.0, ASSUMED),
}
"""Constants that the file of a device does not list."""


def device_names() -> tuple[str, ...]:
    """Return the names of the devices that come with the package."""
    return tuple(sorted(path.stem for path in DEVICES.glob("*.json")))


def load_device(name_or_path: str | Path) -> Device:
    """Read a device by its name, or from a JSON file.

    Raises
    ------
    HardwareError
        DIST0701 for a name that is none, DIST0702 for a file that is no JSON, DIST0703 for an
        unknown, missing or wrong value.
    """
    path = Path(name_or_path)
    if str(name_or_path) in device_names():
        path = DEVICES / f"{name_or_path}.json"
    elif not os.path.exists(path):
        known = device_names()
        raise HardwareError(
            "DIST0701",
            f"there is no device {str(name_or_path)!r}, nor a file of that name",
            place="device",
            remedy=f"{nearest(str(name_or_path), known)} Available: {', '.join(known)}.",
        )
    return parse_device(read_json(path, _no_json, repeated=_wrong), str(path))


def parse_device(data: Any, place: str) -> Device:
    """Make a device of the content of its JSON file; errors as in :func:`load_device`.

    Kernel classes that it does not list are priced like those of :data:`.hardware.LIKE`, or by
    :data:`DEFAULT_FORMS`.
    """
    top = JsonValue(data, place, _wrong).object(_TOP, optional=_OPTIONAL)
    top["schema_version"].version(SCHEMA_VERSION)
    given = {}
    if "kernel_times" in top:
        by_class = top["kernel_times"].object(_CLASSES, optional=_CLASSES)
        given = {name: _forms(by_dtype) for name, by_dtype in by_class.fields()}
    constants = dict(DEFAULT_CONSTANTS)
    if "constants" in top:
        constants.update(_constants(top["constants"]))
    return Device(
        name=top["name"].text(),
        memory_capacity_GiB=top["memory_capacity_GiB"].number(),
        memory_bandwidth_GBps=top["memory_bandwidth_GBps"].number(),
        launch_floor_us=0.0,
        matmul_TFLOPs=peaks(top["matmul_TFLOPs"]),
        vector_TFLOPs=peaks(top["vector_TFLOPs"]),
        efficiency={},
        kernel_times={name: _complete(given, name) for name in _CLASSES},
        constants=constants,
        sources={k: v.text() for k, v in top["sources"].fields()} if "sources" in top else {},
        price_per_hour=top["price_per_hour"].number() if "price_per_hour" in top else None,
        watts=top["watts"].number() if "watts" in top else None,
    )


def _complete(given: Mapping[str, Mapping[str, PowerForm]], name: str) -> Mapping[str, PowerForm]:
    """Return the forms of a kernel class: its own, those of a like class, or the default."""
    if name in given:
        return given[name]
    if name in DEFAULT_FORMS:
        return {"default": DEFAULT_FORMS[name]}
    return _complete(given, _LIKE[name])


def _forms(data: JsonValue) -> dict[str, PowerForm]:
    forms = {}
    for dtype, entry in data.fields():
        fields = entry.object(_FORM)
        forms[dtype] = PowerForm(
            t0_us=fields["t0_us"].number(least=0.0),
            arithmetic=fraction(fields["arithmetic"]),
            traffic=fraction(fields["traffic"]),
            power=fields["power"].number(least=0.25),
            source=fields["source"].text(),
        )
    return _with_default(forms, data)


def _constants(data: JsonValue) -> dict[str, Constant]:
    fields = data.object(DEVICE_CONSTANTS, optional=DEVICE_CONSTANTS)
    constants = {}
    for name, field in fields.fields():
        entry = field.object(("value", "source"))
        is_fraction = DEVICE_CONSTANTS[name].unit.startswith("fraction")
        value = fraction(entry["value"]) if is_fraction else entry["value"].number(least=0.0)
        constants[name] = Constant(value, entry["source"].text())
    return constants


def peaks(data: JsonValue) -> dict[str, float]:
    """Read the peaks of a device by dtype."""
    return _with_default({dtype: peak.number() for dtype, peak in data.fields()}, data)


def fraction(data: JsonValue) -> float:
    """Read a fraction of a peak."""
    value = data.number()
    if value > 1.0:
        raise data.wrong(f"{value} of a peak", "Give a fraction up to 1.")
    return value


def _with_default(entries: dict[str, Entry], data: JsonValue) -> dict[str, Entry]:
    if "default" not in entries:
        raise data.wrong(
            'there is no entry "default"', "Add the entry of the dtypes that are not listed."
        )
    return entries


def _wrong(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0703", what, place=place, remedy=remedy)


def _no_json(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0702", what, place=place, remedy=remedy)

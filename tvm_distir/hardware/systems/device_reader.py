# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read devices from JSON: the numbers of a data sheet, and the times of kernels by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tvm_distir.core.ops import KERNEL_CLASSES, VIEW
from tvm_distir.support import Keys, Positive, Text, check_version, read_json, read_model

from .constants import Constant, DeviceConstants
from .efficiency import LIKE
from .faults import known_file, no_json, wrong
from .hardware import ASSUMED, Device, Peaks, PowerLaw, PowerLaws

SCHEMA_VERSION = 1
DEVICES = Path(__file__).parent / "data" / "devices"

_CLASSES = tuple(name for name in KERNEL_CLASSES if name != VIEW)
_LIKE = {**LIKE, "conv": "matmul", "gather": "memory"}
DEFAULT_LAWS: Mapping[str, PowerLaw] = {
    "matmul": PowerLaw(3.0, 0.75, 0.8, 2.7, f"{ASSUMED}: near h100-sxm"),
    "attention": PowerLaw(15.0, 0.55, 0.5, 1.0, f"{ASSUMED}: near h100-sxm"),
    "attention_backward": PowerLaw(15.0, 0.45, 0.5, 1.0, f"{ASSUMED}: near a100-pcie and b200"),
    "memory": PowerLaw(2.0, 0.85, 0.85, 8.0, ASSUMED),
}
"""Forms of kernel classes that the file of a device does not list: a data sheet makes a device."""
DEFAULT_CONSTANTS: Mapping[str, Constant] = {
    "sustained": Constant(0.93, f"{ASSUMED} as h100-sxm"),
    "burst_us": Constant(0.0, ASSUMED),
}
"""Constants that the file of a device does not list."""
VECTOR_SHARE = 1 / 16
"""Share of the default peak of matrix units that ``vector_TFLOPs`` default to."""


@dataclass(frozen=True, kw_only=True)
class _DeviceFile:
    """The content of a file."""

    name: Text
    memory_capacity_GiB: Positive
    memory_bandwidth_GBps: Positive
    matmul_TFLOPs: Peaks
    vector_TFLOPs: Peaks | None = None
    kernel_times: Annotated[
        Mapping[str, PowerLaws], Keys(dict.fromkeys(_CLASSES, PowerLaws), optional=_CLASSES)
    ] = field(default_factory=dict)
    constants: DeviceConstants = field(default_factory=dict)
    sources: Mapping[str, Text] = field(default_factory=dict)
    price_per_hour: Positive | None = None
    watts: Positive | None = None


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
    path = known_file(name_or_path, DEVICES, device_names(), "there is no device", "device")
    return parse_device(read_json(path, no_json, repeated=wrong), str(path))


def parse_device(data: Any, location: str) -> Device:
    """Make a device of the content of its JSON file; errors as in :func:`load_device`.

    Kernel classes that it does not list are priced like those of :data:`.hardware.LIKE`, or by
    :data:`DEFAULT_LAWS`; ``vector_TFLOPs`` have a default, too.
    """
    content = check_version(data, location, wrong, SCHEMA_VERSION, assumed=SCHEMA_VERSION)
    file = read_model(_DeviceFile, content, location, wrong)
    parts = {**vars(file), "constants": {**DEFAULT_CONSTANTS, **file.constants}}
    if file.vector_TFLOPs is None:
        parts["vector_TFLOPs"] = {"default": file.matmul_TFLOPs["default"] * VECTOR_SHARE}
        source = f"{ASSUMED} as 1/16 of the default peak of matrix units"
        parts["sources"] = {**file.sources, "vector_TFLOPs": source}
    parts["kernel_times"] = {name: _complete(file.kernel_times, name) for name in _CLASSES}
    return Device(**parts, launch_floor_us=0.0, efficiency={})


def _complete(stated: Mapping[str, Mapping[str, PowerLaw]], name: str) -> Mapping[str, PowerLaw]:
    """Return the forms of a kernel class: its own, those of a like class, or the default."""
    if name in stated:
        return stated[name]
    if name in DEFAULT_LAWS:
        return {"default": DEFAULT_LAWS[name]}
    return _complete(stated, _LIKE[name])

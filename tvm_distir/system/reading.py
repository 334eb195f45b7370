# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Systems from JSON, each key and number checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import SystemError_, nearest
from .model import Device, Efficiency, InterNode, IntraNode, System

SCHEMA_VERSION = 1
DATA = Path(__file__).parent / "data"
KERNEL_CLASSES = ("matmul", "conv", "attention", "memory", "gather")

_TOP = (
    "schema_version", "name", "description", "device", "intra_node", "inter_node", "sources",
)  # fmt: skip
_DEVICE = (
    "name", "memory_capacity_GiB", "memory_bandwidth_GBps", "launch_floor_us", "matmul_TFLOPs",
    "vector_TFLOPs", "efficiency",
)  # fmt: skip
_INTRA = ("name", "devices_per_node", "bandwidth_GBps", "latency_us", "setup_us")
_INTER = ("name", "nics_per_node", "bandwidth_per_nic_GBps", "latency_us", "setup_us")


def system_names() -> tuple[str, ...]:
    """Names of the systems that come with the package."""
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))


def load(name_or_path: str | Path) -> System:
    """See :meth:`System.load`."""
    text = str(name_or_path)
    path = DATA / f"{text}.json" if text in system_names() else Path(name_or_path)
    if not path.is_file():
        raise SystemError_(
            "DIST0701",
            f"there is no system {text!r}, nor a file of that name",
            place="system",
            remedy=f"{nearest(text, system_names())} Available: {', '.join(system_names())}. "
            "Or give the path of a JSON file.",
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise SystemError_(
            "DIST0702", f"it is no JSON: {err}", place=str(path), remedy="Repair the file."
        ) from err
    return parse(data, str(path))


def parse(data: Any, place: str) -> System:
    """Make a system of plain data; see :meth:`System.from_dict`."""
    top = _object(data, _TOP, place, optional=("description", "sources"))
    if top["schema_version"] != SCHEMA_VERSION or isinstance(top["schema_version"], bool):
        raise _wrong(
            f"{place}/schema_version",
            f"schema version {top['schema_version']!r}",
            f"This package reads version {SCHEMA_VERSION}.",
        )
    sources = _object(top.get("sources", {}), None, f"{place}/sources")
    return System(
        name=_text(top, "name", place),
        description=_text(top, "description", place) if "description" in top else "",
        device=_device(top["device"], f"{place}/device"),
        intra_node=_intra(top["intra_node"], f"{place}/intra_node"),
        inter_node=_inter(top["inter_node"], f"{place}/inter_node"),
        sources={key: _text(sources, key, f"{place}/sources") for key in sources},
    )


def _device(data: Any, place: str) -> Device:
    found = _object(data, _DEVICE, place)
    return Device(
        name=_text(found, "name", place),
        memory_capacity_GiB=_number(found, "memory_capacity_GiB", place),
        memory_bandwidth_GBps=_number(found, "memory_bandwidth_GBps", place),
        launch_floor_us=_number(found, "launch_floor_us", place, least=0.0),
        matmul_TFLOPs=_peaks(found["matmul_TFLOPs"], f"{place}/matmul_TFLOPs"),
        vector_TFLOPs=_peaks(found["vector_TFLOPs"], f"{place}/vector_TFLOPs"),
        efficiency=_efficiencies(found["efficiency"], f"{place}/efficiency"),
    )


def _intra(data: Any, place: str) -> IntraNode:
    found = _object(data, _INTRA, place)
    return IntraNode(
        name=_text(found, "name", place),
        devices_per_node=_count(found, "devices_per_node", place),
        bandwidth_GBps=_number(found, "bandwidth_GBps", place),
        latency_us=_number(found, "latency_us", place, least=0.0),
        setup_us=_number(found, "setup_us", place, least=0.0),
    )


def _inter(data: Any, place: str) -> InterNode:
    found = _object(data, _INTER, place)
    return InterNode(
        name=_text(found, "name", place),
        nics_per_node=_count(found, "nics_per_node", place),
        bandwidth_per_nic_GBps=_number(found, "bandwidth_per_nic_GBps", place),
        latency_us=_number(found, "latency_us", place, least=0.0),
        setup_us=_number(found, "setup_us", place, least=0.0),
    )


def _peaks(data: Any, place: str) -> dict[str, float]:
    found = _object(data, None, place)
    if "default" not in found:
        raise _wrong(place, 'no entry "default"', "Give the peak of the dtypes not listed.")
    return {dtype: _number(found, dtype, place) for dtype in found}


def _efficiencies(data: Any, place: str) -> dict[str, Efficiency]:
    found = _object(data, KERNEL_CLASSES, place)
    out: dict[str, Efficiency] = {}
    for kernel_class in KERNEL_CLASSES:
        where = f"{place}/{kernel_class}"
        pair = _object(found[kernel_class], ("flops", "bandwidth"), where)
        fractions = {key: _number(pair, key, where) for key in pair}
        for key, value in fractions.items():
            if value > 1.0:
                raise _wrong(f"{where}/{key}", f"{value} of a peak", "Give a fraction up to 1.")
        out[kernel_class] = Efficiency(fractions["flops"], fractions["bandwidth"])
    return out


def _wrong(place: str, what: str, remedy: str) -> SystemError_:
    return SystemError_("DIST0703", what, place=place, remedy=remedy)


def _object(
    data: Any, keys: Iterable[str] | None, place: str, optional: Iterable[str] = ()
) -> Mapping[str, Any]:
    """An object with exactly these keys (any, when None)."""
    if not isinstance(data, Mapping):
        raise _wrong(place, f"a value of type {type(data).__name__}", "Give an object: {...}.")
    if keys is None:
        return data
    known = tuple(keys)
    for key in data:
        if key not in known:
            raise _wrong(f"{place}/{key}", "an unknown key", nearest(str(key), known))
    for key in known:
        if key not in data and key not in tuple(optional):
            raise _wrong(f"{place}/{key}", "a key is missing", "Give it.")
    return data


def _text(data: Mapping[str, Any], key: str, place: str) -> str:
    value = data[key]
    if not isinstance(value, str) or not value:
        raise _wrong(f"{place}/{key}", f"{value!r} is no text", "Give a text in quotes.")
    return value


def _number(data: Mapping[str, Any], key: str, place: str, least: float | None = None) -> float:
    """A finite number that is positive, or at least ``least``."""
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _wrong(f"{place}/{key}", f"{value!r} is no number", "Give a finite number.")
    if value < (0.0 if least is None else least) or (least is None and value == 0):
        bound = "above 0" if least is None else f"of at least {least:g}"
        raise _wrong(f"{place}/{key}", f"{value!r} is out of range", f"Give a number {bound}.")
    return float(value)


def _count(data: Mapping[str, Any], key: str, place: str) -> int:
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(f"{place}/{key}", f"{value!r} is no positive integer", "Give 1 or more.")
    return value

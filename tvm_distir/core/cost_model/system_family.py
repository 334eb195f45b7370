# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compose a system of schema version 2 from a device and a network.

The file of a system is of the form ::

    {"schema_version": 2, "name": "h100", "description": "...",
     "device": "h100-sxm", "network": "hgx-h100", "kernels": "fused", "library": "nccl",
     "price_per_device_hour_usd": 2.5, "watts_per_device": 700,
     "constants": {"hop_us": {"value": 7.5, "source": "..."}}, "sources": {...}}

``device`` and ``network`` are names of files in ``data/devices`` and ``data/networks``, or the
content of such a file. What a data sheet does not state has a default, whose source begins with
"assumed"; everything but ``name``, ``device`` and ``network`` may be omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tvm_distir.support import HardwareError, JsonValue

from .collective_algorithms import RINGED, TIMED
from .constants import MEANINGS, Constant
from .device_reader import SCHEMA_VERSION as DEVICE_VERSION
from .device_reader import load_device, parse_device
from .hardware import ASSUMED, Device
from .network_reader import SCHEMA_VERSION as NETWORK_VERSION
from .network_reader import Network, load_network, read_network

SCHEMA_VERSION = 2
KERNELS = "fused"
"""The kernel profile of a system that names none."""

_REQUIRED = ("schema_version", "name", "device", "network")
_OPTIONAL = (
    "description", "kernels", "library", "price_per_device_hour_usd", "watts_per_device",
    "constants", "sources",
)  # fmt: skip

DEFAULT_CONSTANTS: Mapping[str, Constant] = {
    "python_launch_us": Constant(10.0, f"{ASSUMED}: eager PyTorch issues an op in 5 to 20 us"),
    "unit_overhead_us": Constant(100.0, f"{ASSUMED}: ten launches from Python"),
    "step_overhead_us": Constant(500.0, ASSUMED),
    "hop_us": Constant(10.0, f"{ASSUMED}: NCCL between nodes takes 5 to 10 us per hop"),
    "nic_efficiency": Constant(0.85, f"{ASSUMED} near the fit to vTrain's steps of several nodes"),
}
"""Constants of the host and of messages between nodes that neither the system nor its network
states."""
VECTOR_SHARE = 1 / 16
"""Share of the default peak of matrix units that a device's ``vector_TFLOPs`` default to."""
CURVE_SHARE = 0.8
"""Share of the line rate inside a node that collectives reach where no curves are stated."""
CURVE_SETUP_US, CURVE_HOP_US = 8.0, 1.0
"""Time of a collective's launch and of each of its steps inside a node, in the same case."""

Made = TypeVar("Made")


def compose(data: Any, place: str, make: Callable[..., Made]) -> Made:
    """Pass the parts of a system of schema version 2 to ``make``.

    Raises
    ------
    HardwareError
        DIST0701 for an unknown device or network, DIST0703 for an unknown, missing or wrong value.
    """
    top = JsonValue(data, place, _wrong).object((*_REQUIRED, *_OPTIONAL), optional=_OPTIONAL)
    top["schema_version"].version(SCHEMA_VERSION)
    library = top["library"].text() if "library" in top else None
    device, network = _device(top["device"]), _network(top["network"], library)
    if "price_per_device_hour_usd" in top:
        device = replace(device, price_per_hour=top["price_per_device_hour_usd"].number())
    if "watts_per_device" in top:
        device = replace(device, watts=top["watts_per_device"].number())
    stated = top["sources"].object().fields() if "sources" in top else ()
    return make(
        name=top["name"].text(),
        description=top["description"].text(empty=True) if "description" in top else "",
        device=device,
        intra_node=network.links.intra_node,
        inter_node=network.links.inter_node,
        outer_tiers=network.links.outer_tiers,
        host_link=network.host_link,
        kernels=top["kernels"].text() if "kernels" in top else KERNELS,
        constants=_constants(network, top),
        sources={
            **{f"device.{key}": source for key, source in device.sources.items()},
            **network.sources,
            **{key: source.text() for key, source in stated},
        },
    )


def _constants(network: Network, top: JsonValue) -> dict[str, Constant]:
    """Return the constants of the system: its own, those of its network, and defaults."""
    given = {**DEFAULT_CONSTANTS}
    parts = [JsonValue(dict(network.constants), f"network {network.name}", _wrong)]
    parts += [top["constants"]] if "constants" in top else []
    for part in parts:
        for name, entry in part.object(MEANINGS, optional=tuple(MEANINGS)).fields():
            fields = entry.object(
                ("value", "source", "unit", "meaning"), optional=("unit", "meaning")
            )
            value = fields["value"].number(least=0.0)
            if MEANINGS[name].unit.startswith("fraction") and not 0 < value <= 1:
                raise fields["value"].wrong(f"{value} of a peak", "Give a fraction up to 1.")
            given[name] = Constant(value, fields["source"].text())
    return given


def _device(data: JsonValue) -> Device:
    """Return a device by name, or of the numbers of a data sheet."""
    if not isinstance(data.data, Mapping):
        return load_device(data.text())
    content = {"schema_version": DEVICE_VERSION, **data.data}
    peaks, sources = content.get("matmul_TFLOPs"), _sources(data)
    if "vector_TFLOPs" not in content and isinstance(peaks, Mapping) and "default" in peaks:
        peak = JsonValue(peaks["default"], f"{data.place}/matmul_TFLOPs/default", _wrong).number()
        content["vector_TFLOPs"] = {"default": peak * VECTOR_SHARE}
        sources["vector_TFLOPs"] = f"{ASSUMED} as 1/16 of the default peak of matrix units"
    return parse_device({**content, "sources": sources}, data.place)


def _network(data: JsonValue, library: str | None) -> Network:
    """Return a network by name, or of the numbers of a data sheet."""
    if not isinstance(data.data, Mapping):
        return load_network(data.text(), library)
    content = {"schema_version": NETWORK_VERSION, "name": "network", **data.data}
    sources, near = _sources(data), content.get("intra_node")
    measured = {"curves", "latency_us", "setup_us"}
    if isinstance(near, Mapping) and "bandwidth_GBps" in near and not measured & set(near):
        line_rate = data["intra_node"]["bandwidth_GBps"].number()
        content["intra_node"] = {**near, "curves": {"default": _curves(line_rate)}}
        sources["intra_node.curves"] = f"{ASSUMED}: {CURVE_SHARE:.0%} of the line rate"
    far = content.get("inter_node")
    if isinstance(far, Mapping):
        content["inter_node"] = {"latency_us": 0.0, "setup_us": 0.0, **far}
    return read_network(JsonValue({**content, "sources": sources}, data.place, _wrong), library)


def _sources(data: JsonValue) -> dict[str, Any]:
    return dict(data["sources"].object().data) if "sources" in data else {}


def _curves(line_rate: float) -> list[dict[str, Any]]:
    """Return curves of collectives near the line rate of a node."""
    return [
        {
            "algorithm": "ring" if kind in RINGED else "direct",
            "kind": kind,
            "setup_us": CURVE_SETUP_US,
            "hop_us": CURVE_HOP_US,
            "bandwidth_GBps": CURVE_SHARE * line_rate,
        }
        for kind in TIMED
    ]


def _wrong(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0703", what, place=place, remedy=remedy)

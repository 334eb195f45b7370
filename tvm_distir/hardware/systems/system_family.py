# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compose a system of schema version 2 from a device and a network.

The file of a system is of the form ::

    {"schema_version": 2, "name": "h100", "description": "...",
     "device": "h100-sxm", "network": "hgx-h100", "kernels": "fused", "library": "nccl",
     "kernel_tables": "h100-vllm",
     "price_per_device_hour_usd": 2.5, "watts_per_device": 700,
     "constants": {"hop_us": {"value": 7.5, "source": "..."}}, "sources": {...}}

``device`` and ``network`` are names of files in ``data/devices`` and ``data/networks``, or the
content of such a file; a list of devices is those of equal numbers of pipeline stages, in order.
What a data sheet does not state has a default, whose source begins with "assumed"; everything but
``name``, ``device`` and ``network`` may be omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from tvm_distir.support import Positive, Text, check_version, read_model

from .collective_algorithms import TIMED
from .constants import Constant, Constants
from .curve_checks import needed_algorithm
from .device_reader import SCHEMA_VERSION as DEVICE_VERSION
from .device_reader import load_device, parse_device
from .faults import faults_of, wrong
from .hardware import ASSUMED, Curve, Device
from .network_reader import SCHEMA_VERSION as NETWORK_VERSION
from .network_reader import Network, load_network, read_network
from .stage_systems import joined

SCHEMA_VERSION = 2
KERNELS = "fused"
"""The kernel profile of a system that names none."""

DEFAULT_CONSTANTS: Mapping[str, Constant] = {
    "python_launch_us": Constant(10.0, f"{ASSUMED}: eager PyTorch issues an op in 5 to 20 us"),
    "unit_overhead_us": Constant(100.0, f"{ASSUMED}: ten launches from Python"),
    "step_overhead_us": Constant(500.0, ASSUMED),
    "hop_us": Constant(10.0, f"{ASSUMED}: NCCL between nodes takes 5 to 10 us per hop"),
    "nic_efficiency": Constant(0.85, f"{ASSUMED} near the fit to vTrain's steps of several nodes"),
    "overlap_slowdown": Constant(
        1.189,
        "arXiv:2507.03114: kernels that overlap collectives take 18.9 % longer on average, at most "
        "40 %, in FSDP and pipelined training on 4 GPUs (A100, H100, MI210, MI250)",
    ),
}
"""Constants of the host, of messages between nodes and of overlap that neither the system nor its
network states."""
CURVE_SHARE = 0.8
"""Share of the line rate inside a node that collectives reach where no curves are stated."""
CURVE_SETUP_US, CURVE_HOP_US = 8.0, 1.0
"""Time of a collective's launch and of each of its steps inside a node, in the same case."""

ETHERNET: Mapping[str, object] = {
    "name": "Ethernet, 10 Gb/s", "nics_per_node": 1, "bandwidth_per_nic_GBps": 1.25,
}  # fmt: skip
"""The link between nodes of a network that states a node alone."""

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class _FamilyFile:
    """The content of a file."""

    name: Text
    description: str = ""
    device: Any
    network: Any
    kernels: Text = KERNELS
    library: Text | None = None
    kernel_tables: str = ""
    price_per_device_hour_usd: Positive | None = None
    watts_per_device: Positive | None = None
    constants: Constants = field(default_factory=dict)
    sources: Mapping[str, Text] = field(default_factory=dict)


def compose(data: Any, location: str, make: Callable[..., Made]) -> Made:
    """Pass the parts of a system of schema version 2 to ``make``.

    Raises
    ------
    HardwareError
        DIST0701 for an unknown device or network, DIST0703 for an unknown, missing or wrong value.
    """
    content = check_version(data, location, wrong, SCHEMA_VERSION, assumed=SCHEMA_VERSION)
    if isinstance(content.get("device"), (list, tuple)) and content["device"]:
        return _of_stages(data, location, make)
    faults, library = faults_of(location), content.get("library")
    with faults.gathered():
        if "device" in content:
            device = _device(content["device"], f"{location}/device")
    with faults.gathered():
        if "network" in content:
            chosen = library if isinstance(library, str) else None
            network = _network(content["network"], f"{location}/network", chosen)
            if network.links.graph is not None and not network.links.intra_node.curves:
                problem = "collectives over a graph require curves inside a node"
                remedy = 'Give "curves", or leave out latency_us and setup_us: curves are assumed.'
                raise wrong(f"{location}/network/intra_node", problem, remedy)
    rest = {**content, **dict.fromkeys({"device", "network"} & content.keys())}
    file = read_model(_FamilyFile, rest, location, wrong, faults)
    faults.raise_all()
    device_sources = {f"device.{key}": source for key, source in device.sources.items()}
    price = file.price_per_device_hour_usd or device.price_per_hour
    parts = {key: getattr(file, key) for key in ("name", "description", "kernels", "kernel_tables")}
    return make(
        device=replace(device, price_per_hour=price, watts=file.watts_per_device or device.watts),
        host_link=network.host_link,
        constants={**DEFAULT_CONSTANTS, **network.constants, **file.constants},
        sources={**device_sources, **network.sources, **file.sources},
        **{**parts, **vars(network.links)},
    )


def _of_stages(data: Mapping[str, Any], location: str, make: Callable[..., Made]) -> Made:
    """Return the system of several devices on a network, each for equal numbers of stages."""
    if "kernel_tables" in data:
        problem = "tables of measured kernels are those of one device"
        raise wrong(f"{location}/kernel_tables", problem, "Remove the key, or list one device.")
    devices = data["device"]
    names = [str(each.get("name", "")) if isinstance(each, Mapping) else each for each in devices]
    parts = [
        compose({**data, "device": device, "name": name}, location, make)
        for device, name in zip(devices, names, strict=True)
    ]
    return joined(parts, f"{location}/device", str(data.get("name", "")))


def _device(data: Any, location: str) -> Device:
    """Return a device by name, or of the numbers of a data sheet."""
    if data and isinstance(data, str):
        return load_device(data)
    if isinstance(data, Mapping):
        data = {"schema_version": DEVICE_VERSION, **data}
    return parse_device(data, location)


def _network(data: Any, location: str, library: str | None) -> Network:
    """Return a network by name, or of the numbers of a data sheet."""
    if data and isinstance(data, str):
        return load_network(data, library)
    if not isinstance(data, Mapping):
        return read_network(data, location)
    content = {"schema_version": NETWORK_VERSION, "name": "network", **data}
    zeros = {"latency_us": 0.0, "setup_us": 0.0}
    if "graph" in content:
        derived = {part: "the graph" for part in ("intra_node", "inter_node") if part not in data}
        content["sources"] = {**derived, **content.get("sources", {})}
    elif not {"inter_node", "tiers"} & content.keys():
        source = f"{ASSUMED}: no link between nodes is stated"
        sources = {f"inter_node.{key}": source for key in ETHERNET if key != "name"}
        stated = content.get("sources", {})
        if isinstance(stated, Mapping):
            content.update(inter_node=ETHERNET, sources={**sources, **stated})
    near, far = (
        content.get("intra_node", {} if "graph" in data else None),
        content.get("inter_node"),
    )
    if isinstance(far, Mapping):
        content["inter_node"] = {**zeros, **far}
    tiers = content.get("tiers")
    if isinstance(tiers, (list, tuple)) and tiers and _lacks_curves(tiers[0]):
        curves = [asdict(curve) for curve in _curves(tiers[0]["bandwidth_GBps"])]
        content["tiers"] = [{**tiers[0], "curves": {library or "assumed": curves}}, *tiers[1:]]
        return _assuming_curves(read_network(content, location, library))
    if not isinstance(near, Mapping) or {"curves", *zeros} & set(near):
        return read_network(content, location, library)
    network = read_network({**content, "intra_node": {**zeros, **near}}, location, library)
    near = network.links.intra_node
    links = replace(network.links, intra_node=replace(near, curves=_curves(near.bandwidth_GBps)))
    return _assuming_curves(replace(network, links=links))


def _lacks_curves(tier: Any) -> bool:
    """Return whether a tier states a line rate, and no curves of collectives."""
    rate = tier.get("bandwidth_GBps") if isinstance(tier, Mapping) else None
    return isinstance(rate, (int, float)) and rate > 0 and "curves" not in tier


def _assuming_curves(network: Network) -> Network:
    """Return a network that says of its curves that they are assumed."""
    source = f"{ASSUMED}: {CURVE_SHARE:.0%} of the line rate"
    return replace(network, sources={**network.sources, "intra_node.curves": source})


def _curves(line_rate: float) -> tuple[Curve, ...]:
    """Return curves of collectives near the line rate of a node."""
    rate = CURVE_SHARE * line_rate
    return tuple(
        Curve(needed_algorithm(kind), kind, CURVE_SETUP_US, CURVE_HOP_US, rate) for kind in TIMED
    )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert a system to the plain data of its JSON file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .constants import MEANINGS
from .system import System
from .system_family import SCHEMA_VERSION as FAMILY_VERSION
from .system_reader import SCHEMA_VERSION


def to_data(system: System) -> dict[str, Any]:
    """Give the content of a system's file, which :meth:`System.from_dict` reads.

    A system whose device has forms of kernels of its own has schema version 2, with the device and
    the network written out.
    """
    System.required(system, equal_for="the file of a fitted system")
    data = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(system)}
    del data["stages"]
    if system.device.is_composed or system.constants:
        del data["device"]["launch_floor_us"], data["device"]["efficiency"]
    for key in ("kernel_times", "constants", "sources", "price_per_hour", "watts"):
        if not data["device"][key]:
            del data["device"][key]
    if system.constants:
        data["constants"] = {
            name: {
                "value": constant.value,
                "unit": MEANINGS[name].unit,
                "meaning": MEANINGS[name].meaning,
                "source": constant.source,
            }
            for name, constant in system.constants.items()
        }
    else:
        del data["constants"]
    graph = data.pop("graph")
    if not system.kernel_tables:
        del data["kernel_tables"]
    if system.host_link is None:
        del data["host_link"]
    near = data["intra_node"]
    if near["send_us"] is None:
        del near["send_us"]
    curves = near.pop("curves")
    if curves:
        near["curves"] = {"chosen": list(curves)}
    if data["inter_node"]["oversubscription"] == 1.0:
        del data["inter_node"]["oversubscription"]
    if graph is not None:
        data["graph"] = graph
        del data["inter_node"]
    if outer := data.pop("outer_tiers"):
        data["tiers"] = _tiers(data.pop("intra_node"), data.pop("inter_node"), outer)
    return _composed(data) if system.device.is_composed else data


def _composed(data: dict[str, Any]) -> dict[str, Any]:
    """Give the form of schema version 2."""
    keys = ("tiers", "intra_node", "inter_node", "graph", "host_link")
    sources = data.pop("sources")
    parts: dict[str, dict[str, str]] = {"device": {}, "network": {}}
    for key, source in sources.items():
        first, _, rest = key.partition(".")
        of_device = first == "device"
        parts["device" if of_device else "network"][rest if of_device else key] = source
    return {
        **{key: value for key, value in data.items() if key not in keys},
        "schema_version": FAMILY_VERSION,
        "device": {**data["device"], "sources": parts["device"]},
        "network": {
            "name": data["name"],
            **{key: data[key] for key in keys if key in data},
            "sources": parts["network"],
        },
    }


def _tiers(
    near: dict[str, Any], far: dict[str, Any], outer: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Give the form of more than two tiers."""
    first = {"name": near["name"], "devices": near["devices_per_node"]}
    second = {
        "name": far["name"],
        "devices": outer[0]["devices"],
        "bandwidth_GBps": far["bandwidth_per_nic_GBps"] * far["nics_per_node"] / first["devices"],
        "rails": far["nics_per_node"],
        "latency_us": far["latency_us"],
        "oversubscription": far.get("oversubscription", 1.0),
    }
    rest = [dict(tier) for tier in outer]
    for tier, beyond in zip(rest, [*rest[1:], {}], strict=True):
        tier.pop("devices")
        tier |= {"devices": beyond["devices"]} if beyond else {}
    return [first | {key: near[key] for key in ("bandwidth_GBps", "curves")}, second, *rest]

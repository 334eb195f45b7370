# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Convert a system to the plain data of its JSON file."""

from __future__ import annotations

import dataclasses
from typing import Any

from .constants import MEANINGS
from .system import System
from .system_reader import SCHEMA_VERSION


def to_data(system: System) -> dict[str, Any]:
    """Give the content of a system's file, which :meth:`System.from_dict` reads."""
    data = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(system)}
    for key in ("kernel_times", "constants", "sources", "price_per_hour", "watts"):
        if not data["device"][key]:
            del data["device"][key]
    if system.constants:
        del data["device"]["launch_floor_us"], data["device"]["efficiency"]
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
    if system.host_link is None:
        del data["host_link"]
    for name in ("price_per_device_hour_usd", "watts_per_device"):
        if data[name] is None:
            del data[name]
    if data["intra_node"]["send_us"] is None:
        del data["intra_node"]["send_us"]
    return data

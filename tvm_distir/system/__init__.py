# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Systems: the hardware as data, and what work and traffic cost on it."""

from __future__ import annotations

from .model import Device, Efficiency, InterNode, IntraNode, Roofline, System, WorkLike
from .network import COLLECTIVE_KINDS, wire_bytes
from .reading import SCHEMA_VERSION, system_names

__all__ = [
    "COLLECTIVE_KINDS",
    "SCHEMA_VERSION",
    "Device",
    "Efficiency",
    "InterNode",
    "IntraNode",
    "Roofline",
    "System",
    "WorkLike",
    "system_names",
    "wire_bytes",
]

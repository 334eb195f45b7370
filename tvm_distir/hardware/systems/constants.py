# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the constants of a system's cost model: their meaning, units and plausible ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from tvm_distir.support import Check, Fraction, Keys, NotNegative, Text, shipped_data


@dataclass(frozen=True)
class ConstantSpec:
    """A constant of the model.

    Attributes
    ----------
    unit, meaning : str
    least, most : float
        Bounds of what fits may find.
    spread : float
        The standard deviation of its logarithm around the initial value of a fit: such a deviation
        costs as much as a row that is off by the tolerance.
    begin : float
        The initial value of a fit where a system has 0.
    """

    unit: str
    meaning: str
    least: float
    most: float
    spread: float
    begin: float = 0.0


_TABLES = shipped_data(__file__, "data/constants/specs.json")


def _specs(kind: str) -> Mapping[str, ConstantSpec]:
    """Return the constants of systems, devices or links."""
    return {name: ConstantSpec(**spec) for name, spec in _TABLES[kind].items()}


MEANINGS = _specs("systems")
"""A system names at most 14 of them, so that a few measured rows determine them."""
MOST = 14
DEFAULTS: Mapping[str, float | str] = _TABLES["defaults"]
"""Default of each constant that a system may omit: a value, or the name of another constant."""
DEVICE_CONSTANTS = _specs("devices")
"""Constants of a device with forms of kernels. Products of a step run at the rate of their form for
``burst_us``, then at ``sustained`` times this rate."""
LAWS = _specs("laws")
"""Numbers of the forms of a device that a fit may change on request; fractions above 1 say that the
peak of the device is too low."""
LINKS = _specs("links")
"""Fields of links that a fit may change on request."""


@dataclass(frozen=True)
class Constant:
    """A constant of a system and its source (``assumed`` if there is none)."""

    value: NotNegative
    source: Text


@dataclass(frozen=True)
class _ConstantEntry(Constant):
    """A constant in a file, which may repeat the unit and the meaning for people."""

    unit: str = ""
    meaning: str = ""


@dataclass(frozen=True)
class _FractionEntry(_ConstantEntry):
    """A constant that is a fraction of a peak."""

    value: Fraction


@dataclass(frozen=True)
class _SlowdownEntry(_ConstantEntry):
    """A constant by which times are multiplied, which does not shorten them."""

    value: Annotated[NotNegative, Ge(1)]


def _keys(specs: Mapping[str, ConstantSpec], optional: Collection[str]) -> Keys:
    entries: dict[str, type[_ConstantEntry]] = {
        name: _FractionEntry if spec.unit.startswith("fraction") else _ConstantEntry
        for name, spec in specs.items()
    }
    if "overlap_slowdown" in entries:
        entries["overlap_slowdown"] = _SlowdownEntry
    return Keys(entries, optional)


_VALUES = Check(lambda entries: {name: Constant(e.value, e.source) for name, e in entries.items()})
Constants = Annotated[Mapping[str, Constant], _keys(MEANINGS, MEANINGS), _VALUES]
"""Type of some constants of :data:`MEANINGS` in a file."""
AllConstants = Annotated[Mapping[str, Constant], _keys(MEANINGS, DEFAULTS), _VALUES]
"""Type of all constants of :data:`MEANINGS` that have no default."""
DeviceConstants = Annotated[
    Mapping[str, Constant], _keys(DEVICE_CONSTANTS, DEVICE_CONSTANTS), _VALUES
]
"""Type of some constants of :data:`DEVICE_CONSTANTS` in a file."""


def value_of(constants: Mapping[str, Constant], name: str) -> float:
    """Return the value of a constant, or its default."""
    if name in constants:
        return constants[name].value
    default = DEFAULTS[name]
    return value_of(constants, default) if isinstance(default, str) else default


@dataclass(frozen=True)
class KernelTimeModel:
    """The form of the time of a kernel class.

    Arithmetic takes ``flops / (efficiency peak)``, traffic
    ``factor bytes / (memory_efficiency bandwidth)``, and both of them
    ``max(arithmetic + exposed traffic, traffic)``: never less than either; then a gap.

    Attributes
    ----------
    efficiency : str
        Constant; empty: arithmetic reaches the peak.
    exposed : float
        Share of the traffic that arithmetic does not hide.
    factor : str
        Constant that multiplies the bytes.
    gap_factor : str
        Constant that multiplies the gap.
    bursts : bool
        Whether the first ``burst_us`` of arithmetic run at the peak.
    """

    efficiency: str = ""
    exposed: float = 0.0
    factor: str = ""
    gap_factor: str = ""
    bursts: bool = False


KERNEL_TIME_MODELS: Mapping[str, KernelTimeModel] = {
    name: KernelTimeModel(**model) for name, model in _TABLES["kernel_times"].items()
}
"""Forms of the times of kernels by class: see :class:`KernelTimeModel`. Half of the traffic is
exposed in a pipelined product: loads of a tile run beside the arithmetic of another, at their ends
they do not."""

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the numbers of a system with their sources: which are assumed, and which a step uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from .constants import (
    DEFAULTS,
    DEVICE_CONSTANTS,
    KERNEL_TIME_MODELS,
    MEANINGS,
    Constant,
    ConstantSpec,
)
from .efficiency import LIKE
from .hardware import ASSUMED, Device
from .rates import POWER_LIMITED

NO_SOURCE = "no source is stated"
_LISTED_ELSEWHERE = ("kernel_times", "constants", "sources")
_PARTS = ("device", "intra_node", "inter_node", "host_link")
_OF_KERNELS = {
    f"device.{name}"
    for name in ("memory_bandwidth_GBps", "matmul_TFLOPs", "vector_TFLOPs", "launch_floor_us")
}
"""Numbers of a device that the times of all kernels depend on."""


class SourcedNumber(NamedTuple):
    """A number of a system.

    Attributes
    ----------
    name : str
        Its key, as ``device.memory_bandwidth_GBps`` or ``constants.hop_us``.
    value : float, dict or list
        The number, numbers by dtype, or the numbers of a form or curves.
    unit, meaning : str
        Of the constants of the cost model; other keys state them themselves.
    source : str
    """

    name: str
    value: Any
    unit: str
    meaning: str
    source: str

    @property
    def is_assumed(self) -> bool:
        """Return whether the source says that the number is assumed."""
        return self.source.lower().startswith(ASSUMED)


def sourced_numbers(system: Any) -> tuple[SourcedNumber, ...]:
    """Return all numbers of a system with their sources."""
    numbers = [
        SourcedNumber(name, value, "", "", _source(system.sources, name))
        for part in _PARTS
        for name, value in _numbers(part, getattr(system, part), bool(system.constants))
    ]
    return (*numbers, *_laws(system.device), *_constants(system))


@dataclasses.dataclass(frozen=True)
class StepUse:
    """The kernels, links and constants that the time of a step depends on, with their seconds.

    Attributes
    ----------
    kernels : mapping of (str, str) to float
        Kernel classes, with the types of their arithmetic.
    links : mapping of str to float
        The keys of the links that move data: ``intra_node``, ``inter_node``, ``host_link``.
    host : mapping of str to float
        The constants of the work of the host.
    """

    kernels: Mapping[tuple[str, str], float]
    links: Mapping[str, float]
    host: Mapping[str, float]

    def numbers(self, system: Any) -> tuple[SourcedNumber, ...]:
        """Return the numbers of a system that the step uses; a constant of 0 costs nothing."""
        names = self._names(system.device)
        unused = {"intra_node", "inter_node", "host_link"}.difference(self.links)

        def is_used(number: SourcedNumber) -> bool:
            name = number.name
            if name.startswith(("kernels.", "constants.", "device.efficiency.")):
                return name in names and number.value != 0
            return name.partition(".")[0] not in unused

        return tuple(number for number in sourced_numbers(system) if is_used(number))

    def assumed_shares(
        self, device: Device, numbers: Collection[SourcedNumber]
    ) -> tuple[float, float]:
        """Return the shares of the time of kernels, and of links, that assumed numbers determine.

        ``numbers`` are those of :meth:`numbers`. The work of the host counts as kernels.
        """
        assumed = {number.name for number in numbers if number.is_assumed}
        parts = [(StepUse({key: s}, {}, {}), s) for key, s in self.kernels.items()]
        parts += [(StepUse({}, {}, {name: s}), s) for name, s in self.host.items()]
        kernels = [(part._names(device) | _OF_KERNELS, s) for part, s in parts]
        links = [
            (StepUse({}, {link: s}, {})._names(device) | _of_part(assumed, link), s)
            for link, s in self.links.items()
        ]
        shares = []
        for rows in (kernels, links):
            total_s = sum(spent_s for _, spent_s in rows)
            share_s = sum(spent_s for names, spent_s in rows if not assumed.isdisjoint(names))
            shares.append(share_s / total_s if total_s > 0 else 0.0)
        return shares[0], shares[1]

    def _names(self, device: Device) -> set[str]:
        """Return the names of forms and constants that the step uses."""
        laws = {
            id(device.form(name, dtype))
            for name, dtype in self.kernels
            if name in device.kernel_times
        }
        names = {name for name, law in _named_laws(device) if id(law) in laws}
        names |= {f"constants.{name}" for name in self._constants(device)}
        return names | {f"device.efficiency.{LIKE.get(name, name)}" for name, _ in self.kernels}

    def _constants(self, device: Device) -> set[str]:
        """Return the constants that are read, and those that they default to."""
        classes = {name for name, _ in self.kernels}
        names = {*self.host}
        if device.kernel_times:
            names.update(DEVICE_CONSTANTS if classes.intersection(POWER_LIMITED) else ())
        else:
            models = [
                KERNEL_TIME_MODELS.get(name, KERNEL_TIME_MODELS["memory"]) for name in classes
            ]
            names.update(f for model in models for f in (model.efficiency, model.factor) if f)
            names.update(("memory_efficiency", "kernel_gap_us") if models else ())
            names.update(("burst_us",) if any(model.bursts for model in models) else ())
        if "intra_node" in self.links:
            names.add("collective_factor")
        if "inter_node" in self.links:
            names.update(("hop_us", "nic_efficiency", "nic_efficiency_gradients"))
        if not names.isdisjoint(("collective_factor", "hop_us")):
            names.add("overlap_slowdown")
        while further := {
            default
            for name in names
            if isinstance(default := DEFAULTS.get(name), str) and default not in names
        }:
            names |= further
        return names


def _of_part(names: Collection[str], part: str) -> set[str]:
    """Return the names of numbers of a part of a system."""
    return {name for name in names if name.startswith(f"{part}.")}


def _named_laws(device: Device) -> Iterator[tuple[str, Any]]:
    """Yield the forms of kernels of a device by the key of the first class and dtype with them."""
    seen: set[int] = set()
    for kernel_class, laws in device.kernel_times.items():
        for dtype, law in laws.items():
            if id(law) not in seen:
                seen.add(id(law))
                yield f"kernels.{kernel_class}.{dtype}", law


def _laws(device: Device) -> Iterator[SourcedNumber]:
    """Yield the forms of kernels of a device, each once."""
    for name, law in _named_laws(device):
        numbers = {k: v for k, v in dataclasses.asdict(law).items() if k != "source"}
        yield SourcedNumber(name, numbers, "", "", law.source)


def _constants(system: Any) -> Iterator[SourcedNumber]:
    rows: list[tuple[Mapping[str, Constant], Mapping[str, ConstantSpec]]] = [
        (system.device.constants, DEVICE_CONSTANTS), (system.constants, MEANINGS)
    ]  # fmt: skip
    for constants, meanings in rows:
        for name, constant in constants.items():
            spec = meanings[name]
            yield SourcedNumber(
                f"constants.{name}", constant.value, spec.unit, spec.meaning, constant.source
            )


def _numbers(part: str, value: Any, has_constants: bool) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a part of a system, without those that nobody stated."""
    if value is None:
        return
    curved = bool(getattr(value, "curves", ()))
    for field in dataclasses.fields(value):
        number = getattr(value, field.name)
        if isinstance(number, str) or number == field.default or field.name in _LISTED_ELSEWHERE:
            continue
        if not number and (curved or part == "inter_node"):
            continue
        if field.name == "efficiency":
            rows = () if has_constants else number.items()
            for name, fractions in rows:
                yield f"{part}.efficiency.{name}", dataclasses.asdict(fractions)
        elif not (has_constants and field.name == "launch_floor_us"):
            yield f"{part}.{field.name}", _plain(number)


def _plain(number: Any) -> Any:
    if isinstance(number, tuple):
        return [dataclasses.asdict(item) for item in number]
    return dict(number) if isinstance(number, Mapping) else number


def _source(sources: Mapping[str, str], name: str) -> str:
    """Return the source of a key, of what it is a part of, or of its parts."""
    part, _, key = name.partition(".")
    named = {
        name,
        part,
        *((f"tiers.{key}", "tiers") if part in ("intra_node", "inter_node") else ()),
    }
    for known in sorted(named & set(sources), key=len, reverse=True):
        return sources[known]
    parts = [source for known, source in sources.items() if known.startswith(f"{name}.")]
    return "; ".join(dict.fromkeys(parts)) or NO_SOURCE

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""State how far measured steps were from their predictions, as a band around a predicted time.

The band is conformal: its half-width is the quantile of the absolute logarithms of measured over
predicted times that holds nine of ten further steps which are exchangeable with those of the group.
Some constants of the predictions come from a fit to some of the measured steps, those of vTrain
(``docs/accuracy.md``).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tvm_distir.performance import Program
from tvm_distir.support import shipped_data

from .stack import stack_names

COVERAGE = 0.9
"""Share of measured steps inside of a band."""
LEAST_ROWS = 10
"""Rows of a group; with fewer, a wider group is used."""
SHARDED, TENSOR, DATA, PIPELINE = "sharded weights", "tensor parallelism", "data", "pipeline"
"""Families of plans."""
_GROUPS: Sequence[Sequence[str]] = (
    ("software", "device", "family", "bits"),
    ("software", "device", "bits"),
    ("software", "device"),
    ("software", "bits"),
    ("software",),
    ("device", "family", "bits"),
    ("device", "bits"),
    ("device",),
    ("bits",),
    (),
)
"""Groups from narrow to wide, by what their steps have in common. Those of any software have each
measured step once, as it is predicted without a stack."""


@dataclass(frozen=True)
class StepKind:
    """Kind of steps that are compared with each other.

    Attributes
    ----------
    software : str
        The stack, or the kernel profile where none is chosen.
    device : str
        The name of the device.
    family : str
        Of the plan: :data:`SHARDED`, :data:`TENSOR`, :data:`DATA` or :data:`PIPELINE`.
    bits : int
        Of the type in which most products are computed.
    """

    software: str
    device: str
    family: str
    bits: int

    def words(self, names: Sequence[str]) -> str:
        """Return some of the attributes as words."""
        texts = {**asdict(self), "bits": f"{self.bits} bits"}
        return ", ".join(str(texts[name]) for name in names)


@dataclass(frozen=True)
class MeasuredGroup:
    """Measured steps of a kind, as the file has them.

    Attributes
    ----------
    software, device, family, bits
        As :class:`StepKind` has them.
    source : str
    ratios : tuple of float
        Measured over predicted time of each step.
    """

    software: str
    device: str
    family: str
    bits: int
    source: str
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class ErrorBand:
    """Band around the predicted time of a step.

    Attributes
    ----------
    factor : float
        Nine of ten measured steps took from 1 / factor to factor times what was predicted.
    group : str
        What the measured steps have in common with the step.
    rows : int
        The number of measured steps.
    absent : tuple of str
        What of the step was never measured.
    """

    factor: float
    group: str
    rows: int
    absent: tuple[str, ...] = ()

    def around(self, time_s: float) -> tuple[float, float]:
        """Return the ends of the band around a time."""
        return time_s / self.factor, time_s * self.factor

    def to_dict(self, time_s: float) -> dict[str, object]:
        """Return the band around a time, in seconds, and what it is based on."""
        low_s, high_s = self.around(time_s)
        return {"low_s": low_s, "high_s": high_s, **asdict(self), "absent": list(self.absent)}


@functools.cache
def measured_groups() -> tuple[MeasuredGroup, ...]:
    """Return the groups of measured steps of the package (``scripts/checks/residuals.py``)."""
    data = shipped_data(__file__, "measured_steps.json")
    return tuple(MeasuredGroup(**{**group, "ratios": (*group["ratios"],)}) for group in data)


@functools.cache
def band_of(kind: StepKind, trained: bool = True) -> ErrorBand:
    """Return the band of steps of a kind, from the narrowest group with enough rows.

    Parameters
    ----------
    kind : StepKind
    trained : bool
        Whether it is a training step; no others were measured.
    """
    groups = measured_groups()
    absent = [] if trained else ["steps without training"]
    known = {(group.software, group.device) for group in groups}
    if kind.software not in {software for software, _ in known}:
        absent.append(kind.software)
    if kind.device not in {device for _, device in known}:
        absent.append(kind.device)
    if not absent and (kind.software, kind.device) not in known:
        absent.append(f"{kind.software} on {kind.device}")
    if not any(group.bits == kind.bits for group in groups):
        absent.append(f"products of {kind.bits} bits")
    stacks = stack_names()
    for names in _GROUPS:
        ratios = [
            ratio
            for group in groups
            if ("software" in names or group.software not in stacks)
            and all(getattr(group, name) == getattr(kind, name) for name in names)
            for ratio in group.ratios
        ]
        if len(ratios) >= LEAST_ROWS or not names:
            break
    return ErrorBand(half_width(ratios), kind.words(names) or "all", len(ratios), (*absent,))


def half_width(ratios: Sequence[float]) -> float:
    """Return the factor within which a further ratio is, by the coverage of conformal bands.

    With ``n`` exchangeable ratios it is the ``ceil(0.9 (n + 1))``-th smallest deviation.
    """
    deviations = sorted(abs(math.log(ratio)) for ratio in ratios)
    rank = min(math.ceil(COVERAGE * (len(ratios) + 1)), len(ratios))
    return math.exp(deviations[rank - 1])


def family_of(stages: int, devices: int, parts: Mapping[str, float]) -> str:
    """Return the family of a plan.

    Parameters
    ----------
    stages : int
        Of the pipeline.
    devices : int
        Of a stage.
    parts : mapping of str to float
        Into how many parts ``data`` and ``weights`` are divided; 1 where one is not named.
    """
    if stages > 1:
        return PIPELINE
    data, weights = parts.get("data", 1.0), parts.get("weights", 1.0)
    if weights < 1.5:
        return DATA
    return SHARDED if data * weights > 1.01 * devices else TENSOR


def program_family(program: Program, stages: int = 1) -> str:
    """Return the family of the plan of a program, by the placements of its inputs."""
    totals: dict[str, list[int]] = {"data": [0, 0], "weights": [0, 0]}
    for _, _, value in program.inputs():
        local, full = math.prod(value.shape), math.prod(value.full_shape)
        kind, count = value.role, totals["data"]
        if kind == "weight":
            size = value.bytes // local if local else 0
            totals["weights"][0] += full * size
            totals["weights"][1] += local * size
        elif kind == "input" and full * count[1] >= local * count[0]:
            totals["data"] = [full, local]
    parts = {kind: full / local for kind, (full, local) in totals.items() if local}
    devices = len({device for mesh in program.meshes for device in mesh.device_ids})
    return family_of(stages, devices // stages, parts)


def bits_of(dtype: str) -> int:
    """Return the bits of a type of arithmetic: 8 of ``float8_tensor`` and ``mxfp8``."""
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) if digits else 32

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the times of many steps at once, from their critical paths."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import LINKS, Constant, System
from tvm_distir.performance import HOST, host_time_s

from .calibration import KERNELS
from .cost_terms import CollectiveTerm, CostTerms

Floats = npt.NDArray[np.float64]


def with_constants(system: System, values: Mapping[str, float], source: str = "") -> System:
    """Return a system with other values of constants, of :data:`LINKS`, and of laws of kernels."""
    constants: dict[str, Constant] = dict(system.constants)
    links: dict[str, Any] = {}
    laws = {name: dict(laws) for name, laws in system.device.kernel_times.items()}
    for name, value in values.items():
        if name.startswith(KERNELS):
            _, kernel_class, dtype, field = name.split(".")
            law = laws[kernel_class].get(dtype) or system.device.form(kernel_class, dtype)
            values_of_law: dict[str, Any] = {field: float(value), "source": source or law.source}
            laws[kernel_class][dtype] = dataclasses.replace(law, **values_of_law)
        elif name in LINKS:
            links[name.removeprefix("intra_node.")] = float(value)
        else:
            known = constants[name].source if name in constants else ""
            constants[name] = Constant(float(value), source or known)
    near = dataclasses.replace(system.intra_node, **links) if links else system.intra_node
    sources = {**system.sources, **{n: source for n in values if n in LINKS and source}}
    device = dataclasses.replace(system.device, kernel_times=laws)
    return dataclasses.replace(
        system, device=device, constants=constants, intra_node=near, sources=sources
    )


class StepSums:
    """Steps as sums of kernel batches, collectives and the work of the host.

    Parameters
    ----------
    terms : sequence of CostTerms
        The cost terms of each step.
    """

    def __init__(self, terms: Sequence[CostTerms]) -> None:
        self.count = len(terms)
        kernels, bodies, collectives, kinds = _numbers(), _numbers(), _numbers(), _numbers()
        uses, moves, marks = [], [], []
        for row, way in enumerate(terms):
            uses += [(row, bodies[body], n) for body, n in way.bodies.items()]
            moves += [(row, collectives[sent], n) for sent, n in way.collectives.items()]
            marks += [(row, name, n) for name, n in way.marks.items()]
        kernels_of_batch = [
            (number, kernels[kernel], n)
            for body, number in bodies.items()
            for kernel, n in body.kernels
        ]
        self._uses, self._moves, self._own = map(_columns, (uses, moves, kernels_of_batch))
        self._launches = np.array([body.launches for body in bodies], float)
        self._collectives: list[CollectiveTerm] = list(collectives)
        kind = np.array([kinds[k.kernel_class, k.dtype] for k in kernels], int)
        self._of_kind = [(name, np.flatnonzero(kind == n)) for name, n in kinds.items()]
        self._flops = np.array([k.flops for k in kernels], float)
        self._bytes = np.array([k.bytes for k in kernels], float)
        self._marks = {
            name: np.bincount(
                [row for row, key, _ in marks if key == name],
                [n for _, key, n in marks if key == name],
                self.count,
            )
            for name in {key for _, key, _ in marks}
        }

    def times_s(self, system: System) -> Floats:
        """Return the seconds of each step on a system, if its critical path is unchanged."""
        kernel = np.zeros(self._flops.size)
        for kind, selected in self._of_kind:
            rate = system.rate(*kind)
            kernel[selected] = rate.spent_s(self._flops[selected], self._bytes[selected]).total
        device = self._bodies(kernel)
        host = host_time_s(system, HOST, self._launches)
        row, body, count = self._uses
        times = np.bincount(row, np.maximum(device, host)[body] * count, self.count)
        row, collective, count = self._moves
        if row.size:
            sent = np.array([collective_s(system, c) for c in self._collectives])
            times = times + np.bincount(row, sent[collective] * count, self.count)
        for name, many in self._marks.items():
            times = times + host_time_s(system, name, many)
        return np.asarray(times, np.float64)

    def floors_s(self, system: System) -> Floats:
        """Return the seconds that the arithmetic of each step takes at the peak of a device."""
        kernel = np.zeros(self._flops.size)
        for (kind, dtype), selected in self._of_kind:
            kernel[selected] = self._flops[selected] / system.peak_flops_per_s(dtype, kind)
        row, body, count = self._uses
        times = np.bincount(row, self._bodies(kernel)[body] * count, self.count)
        return np.asarray(times, np.float64)

    def _bodies(self, kernel_s: Floats) -> Floats:
        """Return the seconds of the kernels of each body."""
        body, kernel, count = self._own
        times = np.bincount(body, kernel_s[kernel] * count, len(self._launches))
        return np.asarray(times, np.float64)


def collective_s(system: System, collective: CollectiveTerm) -> float:
    """Return the seconds of a collective."""
    return system.spread_time_s(
        collective.kind,
        collective.payload_bytes,
        collective.spread,
        collective.sharing,
        collective.gradients,
    )


def _numbers() -> defaultdict[Any, int]:
    """Return a table that numbers items in the order of their first use."""
    return defaultdict(itertools.count().__next__)


def _columns(rows: list[tuple[int, int, int]]) -> tuple[npt.NDArray[np.int64], ...]:
    return tuple(np.array(rows, np.int64).reshape(-1, 3).T)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit a system to the matches of traces, as rows of a calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tvm_distir.core.ops import KERNEL_CLASSES, TENSOR_CLASSES, VIEW
from tvm_distir.hardware import LAWS, LINKS, PowerLaw, System
from tvm_distir.planning.calibration.calibrate import calibrate
from tvm_distir.planning.calibration.calibration import Calibration
from tvm_distir.planning.calibration.cost_terms import (
    CollectiveTerm,
    CostTerms,
    KernelBatch,
    KernelTerm,
)
from tvm_distir.planning.calibration.rows import TracedRow

from .alignment import AlignedWork

_TOLERANCE, _FOLDS = 0.02, 10
_PRIOR_POWER = 8.0
"""The power of laws that stand for a roofline, which is nearly its maximum."""


def with_laws(system: System, dtypes: Sequence[str]) -> System:
    """Return a system whose kernels have laws, for each class and dtype, at the same rates."""
    device = system.device
    laws: dict[str, dict[str, PowerLaw]] = {}
    for name in (name for name in KERNEL_CLASSES if name != VIEW):
        laws[name] = dict(device.kernel_times.get(name, {}))
        for dtype in ("default", *dtypes):
            if device.kernel_times:
                laws[name][dtype] = device.form(name, dtype)
                continue
            rate = system.rate(name, dtype)
            share = rate.flops_per_s / system.peak_flops_per_s(dtype, name)
            traffic = rate.bytes_per_s / system.memory_bandwidth_bytes_per_s
            start_us, source = 1e6 * max(rate.gap_s, rate.floor_s), f"the rates of {system.name}"
            laws[name][dtype] = PowerLaw(
                start_us, min(share, 1.0), min(traffic, 1.0), _PRIOR_POWER, source
            )
    return replace(system, kernel_tables="", device=replace(device, kernel_times=laws))


def fit_matches(system: System, matches: Sequence[AlignedWork], source: str) -> Calibration | None:
    """Fit the laws of kernels and the collectives of a system to the times of calls.

    Parameters
    ----------
    system : System
        Its kernels have laws.
    matches : sequence of AlignedWork
    source : str
        The text that is written as the source of what is fitted.
    """
    rows = [row for match in matches for row in _rows(system, match)]
    if not rows:
        return None
    mean_s = sum(row.weight for row in rows) / len(rows)
    rows = [replace(row, weight=row.weight / mean_s) for row in rows]
    kinds = {
        (k.kernel_class, k.dtype) for row in rows for b in row.terms.bodies for k, _ in b.kernels
    }
    also = [f"kernels.{name}.{dtype}.{field}" for name, dtype in sorted(kinds) for field in LAWS]
    if any(row.terms.collectives for row in rows):
        also += ["collective_factor"] if system.intra_node.curves else list(LINKS)[:2]
    return calibrate(system, rows, fit_also=also, tolerance=_TOLERANCE, folds=_FOLDS, source=source)


def _rows(system: System, match: AlignedWork) -> Iterator[TracedRow]:
    """Yield the rows of a match; of collectives those with known sizes."""
    if not match.is_collective:
        kernels = Counter(
            KernelTerm(op.args["class"], op.args["dtype"], op.flops, op.args["bytes"])
            for op in match.ops
            if op.args["class"] != VIEW
        )
        if kernels and match.measured_s:
            batch = KernelBatch(tuple(kernels.items()), 0)
            yield TracedRow(
                CostTerms(Counter({batch: 1})), match.family, match.measured_s, match.predicted_s
            )
        return
    for call in match.calls if match.ops else ():
        ranks = match.ops[0].args["group_size"]
        scale = {"all_gather": float(ranks), "reduce_scatter": 1 / ranks}.get(match.family, 1.0)
        size = int(call.size_bytes * scale)
        if not size and len(match.calls) == len(match.ops):
            size = match.ops[0].args["payload_bytes"]
        if size and ranks > 1 and call.duration_s:
            (where,) = system.layout([range(ranks)]).spreads
            term = CollectiveTerm(match.family, size, where, 1, False)
            terms = CostTerms(collectives=Counter({term: 1}))
            yield TracedRow(
                terms, match.family, call.duration_s, match.predicted_s / len(match.calls)
            )


def within_peaks(system: System) -> System:
    """Raise the peaks that kernels are faster than, so that no fraction is above 1."""
    device = system.device
    items = [(name, *law) for name, of in device.kernel_times.items() for law in of.items()]
    more, peaks = max(1.0, *(law.traffic for *_, law in items)), dict(device.matmul_TFLOPs)
    laws: dict[str, dict[str, PowerLaw]] = {name: {} for name in device.kernel_times}
    for name, dtype, law in items:
        fastest = max(x.arithmetic for n, d, x in items if n in TENSOR_CLASSES and d == dtype)
        factor = max(fastest, 1.0) if name in TENSOR_CLASSES else max(law.arithmetic, 1.0)
        if name in TENSOR_CLASSES and factor > 1.0:
            peaks[dtype] = system.peak_flops_per_s(dtype) * factor * 1e-12
        share = law.arithmetic / factor
        laws[name][dtype] = replace(law, arithmetic=share, traffic=law.traffic / more)
    bandwidth = device.memory_bandwidth_GBps * more
    fitted = replace(
        device, kernel_times=laws, matmul_TFLOPs=peaks, memory_bandwidth_GBps=bandwidth
    )
    return replace(system, device=fitted)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the numbers of a system that a report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from tvm_distir.hardware import SourcedNumber, StepUse, System
from tvm_distir.performance import Op, Program
from tvm_distir.support.display import units

from .model import Hardware


def main_dtype(program: Program) -> str:
    """Return the data type of most FLOPs, or ``float32`` if there are none.

    Wide integers, such as those of random bits, have no matrix units, and do not count.
    """
    totals: dict[str, int] = {}
    for function in program.functions.values():
        for op in function.ops:
            if _counts(op) and not op.dtype.endswith(("int16", "int32", "int64", "bool")):
                totals[op.dtype] = totals.get(op.dtype, 0) + op.flops
    return max(totals, key=lambda dtype: totals[dtype]) if totals else "float32"


def _counts(op: Op) -> bool:
    return op.kind == "compute" and op.flops > 0 and bool(op.dtype)


def hardware_of(
    system: System,
    capacity_bytes: int,
    products: Mapping[str, int],
    use: StepUse,
    spent_s: tuple[float, float, float],
) -> Hardware:
    """Return the figures of a system.

    Parameters
    ----------
    system : System
    capacity_bytes : int
        The memory of the fullest device.
    products : mapping of str to int
        FLOPs of products by the type of their arithmetic. The peak is that of matrix units for this
        type, of several types all FLOPs over the time that they take at the peaks of their types.
    use : StepUse
        What the step uses of the system.
    spent_s : tuple of float
        Seconds in which the busiest device computes, only communicates, and idles.
    """
    parts = system.stages or (system,)
    peaks = {name: fmean(part.peak_flops_per_s(name) for part in parts) for name in products}
    peak = sum(products.values()) / sum(products[dtype] / peaks[dtype] for dtype in products)
    dtype = " and ".join(sorted(products, key=lambda name: (-products[name], name)))
    near, far = system.intra_node, system.inter_node
    numbers, of_kernels, of_links = _numbers_of(parts, use)
    computes_s, moves_s, _ = spent_s
    assumed_s = of_kernels * computes_s + of_links * moves_s
    bandwidth = system.memory_bandwidth_bytes_per_s
    capacity = units.size(capacity_bytes)
    facts = [
        ("device", f"{system.device.name}, {near.devices_per_node} per node"),
        ("peak compute", f"{units.count(peak, 'FLOP/s')} in {dtype} (matrix units)"),
        ("memory", f"{capacity} at {units.count(bandwidth, 'B/s')}"),
        ("launch floor", f"{system.device.launch_floor_us:g} us per kernel"),
        (
            "intra-node links",
            f"{near.name}, {near.bandwidth_GBps:g} GB/s per device, "
            f"{near.latency_us:g} us per step, {near.setup_us:g} us set-up",
        ),
        (
            "inter-node links",
            f"{far.name}, {far.nics_per_node} NICs of {far.bandwidth_per_nic_GBps:g} GB/s, "
            f"{far.latency_us:g} us per step, {far.setup_us:g} us set-up",
        ),
    ]
    if system.description:
        facts.insert(0, ("description", system.description))
    return Hardware(
        name=system.name,
        memory_capacity_bytes=capacity_bytes,
        peak_flops=peak,
        roof_flops=max(peaks.values()),
        memory_bandwidth_bytes_per_s=bandwidth,
        facts=tuple(facts),
        dtype=dtype,
        numbers=numbers,
        assumed_share=assumed_s / sum(spent_s) if assumed_s else 0.0,
        price_per_device_hour_usd=system.device.price_per_hour,
        watts_per_device=system.device.watts,
    )


def _numbers_of(
    parts: Sequence[System], use: StepUse
) -> tuple[tuple[SourcedNumber, ...], float, float]:
    """Return the numbers that a step uses, and the shares of kernels and links that are assumed.

    Of several systems the numbers have their names before them, and the shares are means.
    """
    known = {part.name: (part, use.numbers(part)) for part in parts}
    numbers = tuple(
        number._replace(name=f"{name}: {number.name}" if len(known) > 1 else number.name)
        for name, (_, listed) in known.items()
        for number in listed
    )
    shares = [use.assumed_shares(part.device, listed) for part, listed in known.values()]
    of_kernels, of_links = map(fmean, zip(*shares, strict=True))
    return numbers, of_kernels, of_links

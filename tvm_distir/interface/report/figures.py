# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute the figures by which people compare steps: throughput, utilisation and cost."""

from __future__ import annotations

from typing import NamedTuple

from tvm_distir.support import printable
from tvm_distir.support.display import units

from .model import Analysis

_SHOWN = 4
"""Most assumed numbers that the head of a report names."""


class Figures(NamedTuple):
    """Figures of a step; each is None where it is unknown.

    Attributes
    ----------
    samples_per_s, tokens_per_s : float, optional
        Of all devices together.
    samples_per_s_per_device, tokens_per_s_per_device : float, optional
    mfu : float, optional
        Model FLOP utilization (Chowdhery et al., *PaLM*, 2022, appendix B): the FLOPs that the
        model needs over those of all devices during the step at the peak of the type that their
        products run in. Of several types, that is the harmonic mean of their peaks, weighted by
        FLOPs. Causal attention counts half where it is a single op.
    hfu : float, optional
        The same with recomputed FLOPs; None where nothing is recomputed.
    cost_per_step_usd, cost_per_hour_usd, cost_per_million_tokens_usd : float, optional
        Where the system states a price.
    energy_per_step_kWh : float, optional
        Where the system states the power of a device.
    goodput, checkpoint_interval_s : float, optional
        Of :class:`.TrainingRun`, where devices may fail.
    run_days, run_cost_usd : float, optional
        Of a run on a stated number of tokens, with its failures.
    """

    samples_per_s: float | None = None
    samples_per_s_per_device: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    cost_per_step_usd: float | None = None
    cost_per_hour_usd: float | None = None
    cost_per_million_tokens_usd: float | None = None
    energy_per_step_kWh: float | None = None
    goodput: float | None = None
    checkpoint_interval_s: float | None = None
    run_days: float | None = None
    run_cost_usd: float | None = None


def figures(analysis: Analysis) -> Figures:
    """Return the figures of a step."""
    time_s, count, hardware = analysis.time_s, len(analysis.devices), analysis.hardware
    if time_s <= 0 or not count:
        return Figures()
    samples, tokens, flops = analysis.batch, analysis.tokens, analysis.flops
    samples_per_s = None if samples is None else samples / time_s
    tokens_per_s = None if tokens is None else tokens / time_s
    mfu = hfu = None
    if flops is not None and flops.model and hardware.peak_flops:
        peak = count * time_s * hardware.peak_flops
        mfu = flops.model / peak
        hfu = (flops.model + flops.recomputed) / peak if flops.recomputed else None
    price, watts = hardware.price_per_device_hour_usd, hardware.watts_per_device
    hourly = None if price is None else price * count
    run = analysis.run
    goodput = run.goodput(count)
    hours = None
    if run.tokens is not None and tokens_per_s:
        hours = run.tokens / tokens_per_s / (goodput or 1) / 3600
    return Figures(
        samples_per_s,
        None if samples_per_s is None else samples_per_s / count,
        tokens_per_s,
        None if tokens_per_s is None else tokens_per_s / count,
        mfu,
        hfu,
        None if hourly is None else hourly * time_s / 3600,
        hourly,
        None if hourly is None or not tokens_per_s else hourly / 3600 / tokens_per_s * 1e6,
        None if watts is None else watts * count * time_s / 3.6e6,
        goodput,
        run.checkpoint_interval_s(count),
        None if hours is None else hours / 24,
        None if hours is None or hourly is None else hours * hourly,
    )


def throughput_words(step_figures: Figures) -> str:
    """Return tokens (without a token input, samples) per second; empty where unknown."""
    for unit, total, each in (
        ("tokens/s", step_figures.tokens_per_s, step_figures.tokens_per_s_per_device),
        ("samples/s", step_figures.samples_per_s, step_figures.samples_per_s_per_device),
    ):
        if total is not None and each is not None:
            return f"{units.count(total)} {unit}, {units.count(each)} per device"
    return ""


def utilisation_words(analysis: Analysis, step_figures: Figures) -> str:
    """Return MFU, and HFU of a step with recomputation; empty where unknown."""
    if step_figures.mfu is None:
        return ""
    peak = f"of {units.count(analysis.hardware.peak_flops or 0, 'FLOP/s')}"
    hfu = "" if step_figures.hfu is None else f", HFU {units.share(step_figures.hfu, 1)}"
    return f"MFU {units.share(step_figures.mfu, 1)}{hfu} {peak} {analysis.hardware.dtype}".rstrip()


def cost_parts(step_figures: Figures) -> list[str]:
    """Return the cost of a step, an hour and a million tokens, and the energy of a step.

    They are empty without a price: the energy alone is in :class:`Figures`.
    """
    if step_figures.cost_per_step_usd is None:
        return []
    words = [
        f"${step_figures.cost_per_step_usd:.4g} per step",
        f"${step_figures.cost_per_hour_usd:,.2f} per hour",
    ]
    if step_figures.cost_per_million_tokens_usd is not None:
        words.append(f"${step_figures.cost_per_million_tokens_usd:.4g} per million tokens")
    if step_figures.energy_per_step_kWh is not None:
        words.append(f"{step_figures.energy_per_step_kWh:.3g} kWh per step")
    return words


def run_words(analysis: Analysis, step_figures: Figures) -> str:
    """Return days, dollars and goodput of the run; empty where nothing is stated of it."""
    words = []
    if step_figures.run_days is not None:
        billions = (analysis.run.tokens or 0) / 1e9
        amount = f"{billions / 1000:,.4g}T" if billions >= 1000 else f"{billions:.4g}B"
        words.append(f"{amount} tokens take {step_figures.run_days:,.3g} days")
    if step_figures.run_cost_usd is not None:
        words.append(f"${step_figures.run_cost_usd:,.0f}")
    if step_figures.goodput is not None:
        failure_s = analysis.run.failure_interval_s(len(analysis.devices)) or 0
        words.append(f"goodput {units.share(step_figures.goodput, 1)} with a checkpoint every ")
        words[-1] += _hours(step_figures.checkpoint_interval_s or 0)
        words[-1] += f" and a failure every {_hours(failure_s)}"
    return ", ".join(words)


def _hours(time_s: float) -> str:
    return f"{time_s / 3600:,.1f} h" if time_s >= 3600 else f"{time_s / 60:.1f} min"


def figure_lines(analysis: Analysis) -> list[str]:
    """Return throughput and utilisation in a line, the cost and the run in others."""
    step_figures = figures(analysis)
    rates = [throughput_words(step_figures), utilisation_words(analysis, step_figures)]
    lines = ["; ".join(word for word in rates if word), ", ".join(cost_parts(step_figures))]
    lines.append(run_words(analysis, step_figures))
    return [line for line in lines if line]


def basis_words(analysis: Analysis) -> str:
    """Return what the times are based on: system, kernel profile, assumed numbers."""
    hardware = analysis.hardware
    stack = f", stack {printable(analysis.stack)}" if analysis.stack else ""
    words = (
        f"system {printable(hardware.name)}{stack}, kernel profile {printable(analysis.kernels)}"
    )
    if not hardware.numbers:
        return words
    assumed = [number.name for number in hardware.numbers if number.is_assumed]
    words += f"; assumed numbers determine {units.share(hardware.assumed_share, 1)} of the step"
    if not assumed:
        return words
    shown = ", ".join(name.removeprefix("constants.") for name in assumed[:_SHOWN])
    more = f" and {len(assumed) - _SHOWN} more (--json)" if len(assumed) > _SHOWN else ""
    words += f" ({len(assumed)} of the {len(hardware.numbers)} that it uses"
    return f"{words}: {printable(shown)}{more})"


def basis(analysis: Analysis) -> dict[str, object]:
    """Return what the times are based on as plain data, with the numbers that the step uses."""
    numbers = analysis.hardware.numbers
    return {
        "system": analysis.hardware.name,
        "stack": analysis.stack,
        "kernels": analysis.kernels,
        "assumed": [number.name for number in numbers if number.is_assumed],
        "assumed_share": analysis.hardware.assumed_share,
        "numbers": [{**number._asdict(), "assumed": number.is_assumed} for number in numbers],
    }


def band_words(analysis: Analysis) -> str:
    """Return the band of the time, the measured steps that it is of, and what was not measured."""
    band = analysis.band
    if band is None:
        return ""
    low_s, high_s = band.around(analysis.time_s)
    absent = f"; not measured: {', '.join(map(printable, band.absent))}" if band.absent else ""
    return (
        f"Error band: {units.duration(low_s)} to {units.duration(high_s)}, as for nine of ten of "
        f"{band.rows} measured steps ({printable(band.group)}){absent}"
    )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Summarize an analysis in a few lines: time, throughput, memory, and what they are based on."""

from __future__ import annotations

from tvm_distir.support import InfeasibleError, printable
from tvm_distir.support.display import units

from .figures import band_words, basis_words, figure_lines
from .model import Analysis

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Painter:
    """Adds colour codes to text if colours are enabled.

    Parameters
    ----------
    colour : bool
        Whether colours are enabled.
    """

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, style: str, words: str) -> str:
        """Return text in a style: ``bold``, ``dim``, ``red``, ``green`` or ``yellow``."""
        return f"\x1b[{_STYLES[style]}m{words}\x1b[0m" if self._colour else words


def check_fits(analysis: Analysis) -> None:
    """Refuse (InfeasibleError DIST0804) a program that needs more memory than a device has."""
    if analysis.fits is False:
        peak, capacity = analysis.peak_memory_bytes, analysis.capacity_bytes or 0
        verdict, largest, types = analysis.verdict, "", ""
        remedy = "Use more devices, a smaller batch, or --recompute in training."
        if verdict is not None:
            buffers = (f"{holder.what} {units.size(holder.bytes)}" for holder in verdict.holders)
            largest = f"; largest buffers: {', '.join(buffers)}"
            remedy = (
                f"Estimated to fit with {verdict.chosen}."
                if verdict.chosen
                else "Use more devices: no single change of the plan is enough."
            )
            kinds = [
                r.name for r in verdict.remedies if r.peak_bytes <= capacity and "--" in r.name
            ]
            types = f" Weights of these types fit: {', '.join(kinds)}." if kinds else ""
        tried = next(
            (trial for trial in analysis.trials if trial.part == "fit" and trial.fits), None
        )
        if tried is not None:
            tried_peak = units.size(tried.peak_memory_bytes)
            remedy = f"{tried.change} makes it fit: {tried_peak}, {units.duration(tried.time_s)}."
        raise InfeasibleError(
            "DIST0804",
            f"a device needs {units.size(peak)} of memory and has {units.size(capacity)}{largest}",
            location=analysis.hardware.name, remedy=remedy + types,
        )  # fmt: skip


def to_verdict(analysis: Analysis, colour: bool = False) -> str:
    """Return the first lines of :func:`.text.to_text`: time, bound and memory."""
    return "\n".join(verdict_lines(analysis, Painter(colour))) + "\n"


def mesh_words(analysis: Analysis) -> str:
    """Return the meshes in a line, as ``dp=2, tp=4 (8 devices)``, with names if several."""
    many = len(analysis.meshes) > 1
    words = []
    for mesh in analysis.meshes:
        axes = ", ".join(f"{axis}={n}" for axis, n in zip(mesh.axes, mesh.shape))
        words.append(f"{mesh.name}: {axes}" if many else axes)
    layouts = {(mesh.axes, mesh.shape) for mesh in analysis.meshes}
    if analysis.pipeline is not None and many and len(layouts) == 1:
        words = [f"{len(analysis.meshes)} x ({words[0].partition(': ')[2]})"]
    total = len({d for mesh in analysis.meshes for d in mesh.device_ids})
    return f"{'; '.join(words)} ({total} device{'s' if total != 1 else ''})"


def verdict_lines(analysis: Analysis, paint: Painter) -> list[str]:
    """Return the summary in a few lines."""
    peak = units.size(analysis.peak_memory_bytes)
    if analysis.fits is None:
        fit = paint("yellow", f"peak memory {peak} per device")
    else:
        capacity = units.size(analysis.capacity_bytes or 0)
        fit = (
            paint("green", f"fits: {peak} of {capacity} per device")
            if analysis.fits
            else paint("red", f"DOES NOT FIT: {peak} of {capacity} per device")
        )
    plan = f"strategy {analysis.strategy}" if analysis.strategy else "user-defined plan"
    staged = pipeline_words(analysis)
    return [
        paint("bold", f"{printable(analysis.title)} on {printable(analysis.hardware.name)}"),
        f"  {mesh_words(analysis)}, {printable(plan)}{batch_words(analysis)}",
        f"  {paint('bold', units.duration(analysis.time_s))} per step, bound by "
        f"{analysis.bound_by} ({units.share(analysis.bound_share, 1.0)}); {fit}",
        *(f"  {line}" for line in figure_lines(analysis)),
        *([f"  {staged}"] if staged else []),
        f"  Based on {basis_words(analysis)}.",
        *([f"  {band}."] if (band := band_words(analysis)) else []),
        *(f"  {paint('yellow', printable(note))}." for note in analysis.notes),
    ]


def batch_words(analysis: Analysis) -> str:
    """Return the samples of a step and their tokens, after a comma; empty where unknown."""
    batch, tokens = analysis.batch, analysis.tokens
    if not batch:
        return ""
    length = f" of {tokens // batch:,} tokens" if tokens and tokens % batch == 0 else ""
    return f", batch {batch:,}{length}"


def pipeline_words(analysis: Analysis) -> str:
    """Return schedule, stages, micro-batches and bubble of a pipelined step; empty for others."""
    pipeline = analysis.pipeline
    if pipeline is None:
        return ""
    stages = f"{pipeline.ranks * pipeline.chunks} stages"
    if pipeline.chunks > 1:
        stages += f" on {pipeline.ranks} ranks"
    return (
        f"schedule {pipeline.schedule}: {stages}, {pipeline.micro_batches} micro-batches, "
        f"bubble {units.share(pipeline.bubble, 1.0)}"
    )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Summarize an analysis in a few lines: time, bound, memory."""

from __future__ import annotations

from tvm_distir.support import InfeasibleError, printable

from . import units
from .model import Analysis

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Painter:
    """Wraps words in colour codes, or leaves them alone.

    Parameters
    ----------
    colour : bool
        True for a terminal that shows colours.
    """

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, style: str, words: str) -> str:
        """``words`` in a style of ``bold dim red green yellow``."""
        return f"\x1b[{_STYLES[style]}m{words}\x1b[0m" if self._colour else words


def check_fits(analysis: Analysis) -> None:
    """Refuse (InfeasibleError DIST0804) a program that needs more memory than a device has."""
    if analysis.fits is False:
        peak, capacity = analysis.peak_memory_bytes, analysis.capacity_bytes or 0
        found, held = analysis.verdict, ""
        remedy = "Use more devices, a smaller batch, or in training --recompute."
        if found is not None:
            most = (f"{holder.what} {units.size(holder.bytes)}" for holder in found.holders)
            held = f"; most is held by {', '.join(most)}"
            remedy = (
                f"{found.chosen} would make it fit, by the account of the peak."
                if found.chosen
                else "ZeRO, recomputation, micro-batch / 2, tp x 2: none of these is enough."
            )
        tried = next(
            (trial for trial in analysis.trials if trial.part == "fit" and trial.fits), None
        )
        if tried is not None:
            held_then = units.size(tried.peak_memory_bytes)
            remedy = f"{tried.change} makes it fit: {held_then}, {units.duration(tried.time_s)}."
        raise InfeasibleError(
            "DIST0804",
            f"a device needs {units.size(peak)} and has {units.size(capacity)}{held}",
            place=analysis.hardware.name,
            remedy=remedy,
        )


def to_verdict(analysis: Analysis, colour: bool = False) -> str:
    """Write the first lines of :func:`.text.to_text`, which say what came out."""
    return "\n".join(verdict_lines(analysis, Painter(colour))) + "\n"


def mesh_words(analysis: Analysis) -> str:
    """The meshes in one line: ``dp=2, tp=4 (8 devices)``, named where there are several."""
    many = len(analysis.meshes) > 1
    words = []
    for mesh in analysis.meshes:
        axes = ", ".join(f"{axis}={n}" for axis, n in zip(mesh.axes, mesh.shape))
        words.append(f"{mesh.name}: {axes}" if many else axes)
    alike = {(mesh.axes, mesh.shape) for mesh in analysis.meshes}
    if analysis.pipeline is not None and many and len(alike) == 1:
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
    plan = f"strategy {analysis.strategy}" if analysis.strategy else "a given plan"
    staged = pipeline_words(analysis)
    return [
        paint("bold", f"{printable(analysis.title)} on {printable(analysis.hardware.name)}"),
        f"  {mesh_words(analysis)}, {printable(plan)}",
        f"  {paint('bold', units.duration(analysis.time_s))} per step, bound by "
        f"{analysis.bound_by} ({units.share(analysis.bound_share, 1.0)}); {fit}",
        *([f"  {staged}"] if staged else []),
    ]


def pipeline_words(analysis: Analysis) -> str:
    """Schedule, stages, micro-batches and bubble of a step in stages; empty for others."""
    found = analysis.pipeline
    if found is None:
        return ""
    stages = f"{found.ranks * found.chunks} stages"
    if found.chunks > 1:
        stages += f" on {found.ranks} ranks"
    return (
        f"schedule {found.schedule}: {stages}, {found.micro_batches} micro-batches, "
        f"bubble {units.share(found.bubble, 1.0)}"
    )

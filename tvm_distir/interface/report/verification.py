# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the outcome of ``verify`` as text and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm_distir.support import align, printable
from tvm_distir.support.display import units

from .verdict import Painter

if TYPE_CHECKING:
    from tvm_distir.execution import VerifyReport


def verdict_dict(
    outcome: VerifyReport, model: str, timings_s: Mapping[str, float]
) -> dict[str, object]:
    """Return the JSON of ``verify``: ``equal``, differences, tolerances, ``collectives``."""
    return {
        **outcome.to_dict(),
        "model": model,
        "timings_s": {stage: round(took_s, 6) for stage, took_s in timings_s.items()},
    }


def verdict_text(
    outcome: VerifyReport, model: str, timings_s: Mapping[str, float], colour: bool = False
) -> str:
    """Return the verdict, a row per output, the collectives executed, and the times.

    Parameters
    ----------
    outcome : VerifyReport
    model : str
        As given by the user.
    timings_s : mapping of str to float
        Seconds by stage.
    colour : bool
        Whether to use colour codes.
    """
    paint = Painter(colour)
    how = "bit for bit" if outcome.exact else "within the tolerance"
    verdict = paint("green", f"EQUAL {how}") if outcome.equal else paint("red", "NOT EQUAL")
    lines = [
        f"{verdict}: {printable(model)} on the engine {outcome.engine}, seed {outcome.seed}"
        f"{outcome.data_text()}",
        f"  maximum difference {outcome.max_abs_diff:.3g}, relative {outcome.max_rel_diff:.3g}; "
        f"tolerance {outcome.atol:.3g} + {outcome.rtol:.3g} * |reference|",
        "",
        paint("bold", "Outputs"),
    ]
    rows = [
        [
            str(output.index),
            units.shape(output.shape),
            output.dtype,
            ("equal" if output.equal else "DIFFERENT")
            + (f" ({output.distribution} data)" if output.distribution else ""),
            f"{output.max_abs_diff:.3g}",
            f"{output.max_rel_diff:.3g}",
        ]
        for output in outcome.outputs
    ]
    head = ["output", "shape", "dtype", "verdict", "max difference", "relative"]
    lines += align(head, rows, "rlllrr")
    lines += _notes(outcome, paint)
    if outcome.collectives:
        lines += ["", paint("bold", "Collectives executed per device")]
        rows = [
            [
                collective.kind,
                collective.mesh_axis,
                str(collective.group_size),
                str(collective.count),
                units.size(collective.bytes_per_device),
                units.size(collective.wire_bytes_per_device),
            ]
            for collective in outcome.collectives
        ]
        lines += align(["kind", "axis", "group", "count", "bytes", "wire bytes"], rows, "llrrrr")
    lines += ["", paint("bold", "Time of this run")]
    rows = [[stage, f"{took_s:.2f} s"] for stage, took_s in timings_s.items()]
    lines += align(["stage", "time"], rows, "lr")
    return "\n".join(lines) + "\n"


def _notes(outcome: VerifyReport, paint: Painter) -> list[str]:
    """Return notes on the tolerance of narrow types and the first difference."""
    lines = []
    if outcome.rounding is not None:
        difference = max((output.max_abs_diff for output in outcome.float32_outputs), default=0.0)
        is_equal = all(output.equal for output in outcome.float32_outputs)
        same = "equal" if is_equal else paint("red", "DIFFERENT")
        lines += [
            *textwrap.wrap(outcome.rounding.text(), 100),
            f"In float32 both programs are {same}, by up to {difference:.3g}.",
        ]
        if outcome.equal and not outcome.positive:
            lines.append("Positive data were not compared: inputs are given, or results overflow.")
    if outcome.replicas:
        lines.append(f"Replicas differ: {outcome.replicas}.")
    if outcome.fault is not None:
        text = outcome.fault.text()
        lines.append(f"{text[0].upper()}{text[1:]}.")
    if outcome.no_fault:
        lines.append(f"The first different binding is unknown: {outcome.no_fault}.")
    lines += [f"Different from the exported program: {text}." for text in outcome.unlike_claims]
    return ["", *lines] if lines else []

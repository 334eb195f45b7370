# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Format work, bars and ranges of devices for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_distir.support.display import units

_WIDTH = 40


def work(flops: int) -> str:
    """Format FLOPs, ``-`` for none."""
    return units.count(flops, "FLOP") if flops else "-"


def bar(part: float, total: float, width: int = _WIDTH) -> str:
    """Return a bar of ``#`` as long as the share, with ``!`` where it exceeds the whole."""
    if total <= 0:
        return "." * width
    filled = round(width * part / total)
    if filled > width:
        return "#" * width + "!" * min(filled - width, 8)
    return "#" * filled + "." * (width - filled)


def ranges(ids: Sequence[int]) -> str:
    """Format ids as ranges: ``0-3, 8`` for 0, 1, 2, 3, 8."""
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(sorted(ids)))


def runs(ids: Sequence[int]) -> list[list[int]]:
    """Return the first and the last of consecutive ids."""
    pairs: list[list[int]] = []
    for i in ids:
        if pairs and i == pairs[-1][1] + 1:
            pairs[-1][1] = i
        else:
            pairs.append([i, i])
    return pairs

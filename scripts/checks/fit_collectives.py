#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Fit the curves of collectives inside a node to measured ones, and print errors out of fold.

``python scripts/checks/fit_collectives.py [--write]``. The rows are those of
``benchmarks/measured/collectives_one_node.csv``; their sizes are of the whole value, which the
source counts in elements of two bytes: only so do the rates agree with those of nccl-tests. With
``--write`` the curves are put into the networks of :data:`NETWORKS`.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from tvm_distir.hardware.systems.collective_algorithms import RINGED
from tvm_distir.hardware.systems.hardware import Curve, IntraNode
from tvm_distir.hardware.systems.network_reader import NETWORKS as FOLDER
from tvm_distir.hardware.systems.tiers import curve_time_s

ROWS = Path(__file__).parents[2] / "benchmarks" / "measured" / "collectives_one_node.csv"
LINE_GBPS = {"a100_sxm": 300.0, "h100_sxm": 450.0, "h200_sxm": 450.0, "b200_sxm": 900.0}
NETWORKS = {
    "a100_sxm": ("dgx-a100", "p4d"),
    "h100_sxm": ("hgx-h100", "p5"),
    "h200_sxm": ("hgx-h200",),
    "b200_sxm": ("hgx-b200", "gb200-nvl72", "gb300-nvl72"),
}
"""The networks that have the links of each device of the rows."""
IN_SWITCH = ("h100_sxm", "h200_sxm")
"""Devices whose rows show a sum in the switch faster than a ring."""
FOLDS = 3
STARTS = 6

Floats = npt.NDArray[np.float64]


class Start(NamedTuple):
    """An algorithm, and where its fit begins: us, us, and a fraction of the line rate."""

    algorithm: str
    setup_us: float
    hop_us: float
    rate: float


RINGS = (
    Start("ring", 5.0, 0.7, 0.1),
    Start("ring", 8.0, 0.9, 0.35),
    Start("ring", 12.0, 1.0, 0.75),
)
"""One for each protocol of NCCL: LL, LL128 and Simple."""
DIRECT = tuple(start._replace(algorithm="direct", hop_us=0.2) for start in RINGS)
CUSTOM = (Start("one_shot", 3.0, 0.2, 0.5), Start("direct", 4.0, 0.3, 0.6))
MOST_US = {"direct": 0.5}
"""The most that a step takes: messages that are issued side by side; elsewhere 10 us."""


class Rows(NamedTuple):
    """Measured collectives of a device, library and kind."""

    ranks: npt.NDArray[np.int64]
    total_bytes: npt.NDArray[np.int64]
    time_us: Floats

    def some(self, which: npt.NDArray[np.bool_]) -> Rows:
        """Return some of the rows."""
        return Rows(*(column[which] for column in self))


def read() -> dict[tuple[str, str, str], Rows]:
    """Read the rows by device, library and kind; those above the line rate are refused."""
    lists: dict[tuple[str, str, str], list[tuple[float, ...]]] = defaultdict(list)
    refused = 0
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            ranks, whole, time_us = (
                int(row["ranks"]),
                int(row["whole_bytes"]),
                float(row["time_us"]),
            )
            least_us = whole * (ranks - 1) / ranks / LINE_GBPS[row["device"]] / 1e3
            if time_us < least_us:
                refused += 1
                continue
            lists[row["device"], row["library"], row["kind"]].append((ranks, whole, time_us))
    print(f"{sum(map(len, lists.values()))} rows, {refused} refused as faster than their links\n")
    return {
        key: Rows(*(np.array(column) for column in zip(*rows, strict=True)))
        for key, rows in lists.items()
    }


def predicted_us(kind: str, curves: Sequence[Curve], rows: Rows) -> Floats:
    """Return the times of rows by curves."""
    near = IntraNode("", 8, 1.0, 0.0, 0.0, curves=tuple(curves))
    out = np.empty(rows.time_us.size)
    for ranks in np.unique(rows.ranks):
        chosen = rows.ranks == ranks
        payload = rows.total_bytes[chosen] / (ranks if kind == "reduce_scatter" else 1)
        out[chosen] = 1e6 * curve_time_s(near, kind, payload, int(ranks))
    return out


def curves_of(kind: str, starts: Sequence[Start], values: Floats) -> list[Curve]:
    """Return curves by the logarithms of their numbers, (4 * curves,)."""
    out = []
    for start, (setup, hop, rate, copied) in zip(starts, values.reshape(-1, 4), strict=True):
        numbers = [*np.exp([setup, hop, rate]), 1 / (1 + np.exp(-copied))]
        out.append(Curve(start.algorithm, kind, *(float(f"{number:.4g}") for number in numbers)))
    return out


def fit(
    kind: str, starts: Sequence[Start], rows: Rows, line: float, others: Sequence[Curve]
) -> list[Curve]:
    """Fit curves beside others that hold: least squares of logarithms, from several starts."""
    least = np.array([(-3.0, -4.0, np.log(line * 0.02), -8.0) for _ in starts])
    most = np.array(
        [(np.log(60), np.log(MOST_US.get(s.algorithm, 10.0)), np.log(line), 8.0) for s in starts]
    )
    first = np.array([(*np.log([s.setup_us, s.hop_us, s.rate * line]), 0.0) for s in starts])
    rng = np.random.default_rng(0)

    def off(values: Floats) -> Floats:
        curves = [*others, *rough(kind, starts, values)]
        return np.log(predicted_us(kind, curves, rows) / rows.time_us)

    best = None
    for number in range(STARTS):
        begin = first + (rng.normal(size=first.shape) * (0.4, 0.4, 0.4, 0.0) if number else 0.0)
        begin = np.clip(begin, least + 1e-6, most - 1e-6)
        bounds = (least.ravel(), most.ravel())
        result = least_squares(
            off, begin.ravel(), bounds=bounds, loss="soft_l1", f_scale=0.1, max_nfev=200
        )
        best = result if best is None or result.cost < best.cost else best
    return curves_of(kind, starts, best.x)


def rough(kind: str, starts: Sequence[Start], values: Floats) -> list[Curve]:
    """Return curves whose numbers are not rounded, so that differences have slopes."""
    return [
        Curve(start.algorithm, kind, *np.exp(row[:3]), 1 / (1 + np.exp(-row[3])))
        for start, row in zip(starts, values.reshape(-1, 4), strict=True)
    ]


def starts_of(device: str, library: str, kind: str) -> tuple[Start, ...]:
    """Return the algorithms of a library for a kind."""
    if library != "nccl":
        return CUSTOM
    if kind not in RINGED:
        return DIRECT
    in_switch = kind == "all_reduce" and device in IN_SWITCH
    return (*RINGS, Start("in_switch", 40.0, 1.0, 0.55)) if in_switch else RINGS


def main() -> None:
    """Fit, print, and write the curves."""
    curves: dict[str, dict[str, list[Curve]]] = defaultdict(lambda: defaultdict(list))
    print("| device | library | kind | rows | median error out of fold | mean |")
    print("|--|--|--|--|--|--|")
    for (device, library, kind), rows in sorted(
        read().items(), key=lambda pair: pair[0][1] != "nccl"
    ):
        starts = starts_of(device, library, kind)
        others = [c for c in curves[device]["nccl"] if c.kind == kind] if library != "nccl" else []
        fold = np.random.default_rng(1).integers(0, FOLDS, rows.time_us.size)
        error = np.empty(fold.size)
        for number in range(FOLDS):
            fitted = fit(kind, starts, rows.some(fold != number), LINE_GBPS[device], others)
            stored = rows.some(fold == number)
            error[fold == number] = (
                predicted_us(kind, [*others, *fitted], stored) / stored.time_us - 1
            )
        percent = 100 * np.abs(error)
        print(
            f"| {device} | {library} | {kind} | {rows.time_us.size} | {np.median(percent):.1f} % "
            f"| {percent.mean():.1f} % |",
            flush=True,
        )
        curves[device][library] += fit(kind, starts, rows, LINE_GBPS[device], others)
    if "--write" in sys.argv:
        write(curves)


def write(curves: dict[str, dict[str, list[Curve]]]) -> None:
    """Put the curves into the networks."""
    for device, names in NETWORKS.items():
        for name in names:
            path = FOLDER / f"{name}.json"
            data = json.loads(path.read_text())
            near = data["intra_node"] if "intra_node" in data else data["tiers"][0]
            remaining = near.get("curves", {}).get("measured elsewhere", [])
            near["curves"] = {
                library: [asdict(curve) for curve in some]
                for library, some in curves[device].items()
            }
            near["curves"]["nccl"] += remaining
            path.write_text(shown(data))


def shown(data: object, depth: int = 0) -> str:
    """Return JSON with objects of numbers and words on a line each."""
    pad = " " * (depth + 1)
    flat = json.dumps(data)
    if depth and (not isinstance(data, dict | list) or (len(flat) < 98 - depth)):
        return flat
    if isinstance(data, dict):
        items = [f"{pad}{json.dumps(k)}: {shown(v, depth + 1)}" for k, v in data.items()]
        ends = "{}"
    else:
        assert isinstance(data, list)
        items = [f"{pad}{shown(item, depth + 1)}" for item in data]
        ends = "[]"
    text = f"{ends[0]}\n" + ",\n".join(items) + f"\n{' ' * depth}{ends[1]}"
    return text if depth else text + "\n"


if __name__ == "__main__":
    main()

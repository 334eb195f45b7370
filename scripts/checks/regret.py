#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""How much slower than the best measured configuration is the one that prices rank first.

``python scripts/checks/regret.py``: among the configurations (tensor, data and pipeline degrees,
micro-batch) that ``benchmarks/measured`` has for one model, number of devices and batch, by the
constants of the system that comes with the package, which are fitted to all these rows, and by the
priors of ``accuracy.py``, which are fitted to none. The first run makes their programs, which are
kept on disk. Exits with 1 where those of the package err by more than 2 % on average.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from accuracy import BEFORE, MEASURED

import tvm_distir as td
from tvm_distir.planning.calibration.measured_rows import StepTimeModel
from tvm_distir.planning.calibration.row_files import read_rows
from tvm_distir.planning.calibration.rows import MeasuredStep
from tvm_distir.planning.calibration.step_times import with_constants

ALLOWED = 0.02
TABLES = ("vtrain_single_node", "vtrain_multi_node")


def choices(rows: list[MeasuredStep]) -> list[list[MeasuredStep]]:
    """Rows of one model, number of devices and batch, two and more.

    What a tensor degree leaves of the vocabulary makes no other model.
    """
    matches: dict[tuple[int, ...], list[MeasuredStep]] = defaultdict(list)
    for row in rows:
        matches[row.devices, row.global_batch, row.hidden, row.heads, row.layers, row.seq].append(
            row
        )
    return [group for group in matches.values() if len(group) > 1]


def regrets(groups: list[list[MeasuredStep]], system: td.System) -> list[float]:
    """How much slower the configuration ranked first is than the best, per group."""
    times = iter(StepTimeModel([row for group in groups for row in group], system).times_s({}))
    matches = []
    for group in groups:
        priced = [next(times) for _ in group]
        chosen = group[int(np.argmin(priced))].time_s
        matches.append(chosen / min(row.time_s for row in group) - 1)
    return matches


def main() -> int:
    """Rank and print."""
    shipped = td.System.load("dgx-a100-megatron")
    systems = {
        "fitted to these rows": shipped,
        "priors": with_constants(shipped, BEFORE, "assumed"),
    }
    worst = 0.0
    print("| rows | choices | configurations | constants | right | mean, % | most, % |")
    print("|--|--:|--:|--|--:|--:|--:|")
    for table in TABLES:
        groups = choices(read_rows(MEASURED / f"{table}.csv"))
        count = sum(map(len, groups))
        every = np.mean(
            [np.mean([row.time_s for row in g]) / min(r.time_s for r in g) - 1 for g in groups]
        )
        for name, system in systems.items():
            result = 100 * np.array(regrets(groups, system))
            if system is shipped:
                worst = max(worst, float(result.mean()) / 100)
            print(
                f"| {table} | {len(groups)} | {count} | {name} | {int((result == 0).sum())} "
                f"| {result.mean():.2f} | {result.max():.1f} |",
                flush=True,
            )
        print(f"| {table} | {len(groups)} | {count} | any configuration | | {100 * every:.2f} | |")
    return 1 if worst > ALLOWED else 0


if __name__ == "__main__":
    raise SystemExit(main())

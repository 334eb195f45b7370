#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Errors of predicted times against published ones, as a table.

``python scripts/checks/accuracy.py [PART ...]``: steps, family, products, quantized, perceptrons,
serving.
Constants are fitted to ``benchmarks/measured`` and tested out of fold; those of vTrain's steps
also on the tables of two papers that nothing is fitted to. The system of ``family`` is fitted to
no step. The first run makes 178 programs, which are kept on disk.
"""

from __future__ import annotations

import csv
import dataclasses
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import numpy as np
from tests.hardware.systems.left_out_errors import left_out_errors

import tvm_distir as td
from tvm_distir.hardware import system_names
from tvm_distir.performance.fusion.profile import Profile
from tvm_distir.performance.fusion.weight_kinds import Quantization
from tvm_distir.planning.calibration.calibrate import calibrate
from tvm_distir.planning.calibration.calibration import Calibration
from tvm_distir.planning.calibration.measured_rows import StepTimeModel
from tvm_distir.planning.calibration.programs import program_of
from tvm_distir.planning.calibration.row_files import read_rows
from tvm_distir.planning.calibration.rows import MeasuredStep
from tvm_distir.planning.calibration.step_times import with_constants

MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured"
BEFORE = {
    "matmul_efficiency": 0.88, "unaligned_efficiency": 0.3, "memory_efficiency": 0.75,
    "scores_factor": 1.3, "logits_factor": 1.5, "kernel_gap_us": 1.5, "python_launch_us": 60.0,
    "unit_overhead_us": 250.0, "collective_factor": 1.0, "nic_efficiency": 0.8,
    "nic_efficiency_gradients": 0.5,
}  # fmt: skip
"""Centers of the priors: those of the system that comes with the package know all rows."""
QUANTIZING = ("fused-fp8", "fused-fp8-block", "fused-mxfp8", "fused-nvfp4")
MULTI_WEIGHT = 5.0
"""Of rows over several nodes, of which there are few."""


def tested(rows: list[MeasuredStep], fitted: Calibration) -> str:
    """Mean and signed mean error of rows on Selene, by constants fitted elsewhere."""
    selene = with_constants(td.System.load("selene-megatron"), fitted.values)
    times = StepTimeModel(rows, selene).times_s({})
    error = 100 * (times / np.array([row.time_s for row in rows]) - 1)
    each = " ".join(f"{item:+.1f}" for item in error)
    return f"{np.abs(error).mean():.2f} | {error.mean():+.2f} | {each}"


def several_nodes(rows: list[MeasuredStep], matches: Calibration) -> float:
    """Mean error of the rows of several nodes, out of fold, from those by nodes."""
    per_node = matches.system.intra_node.devices_per_node
    count = Counter(-(-row.devices // per_node) for row in rows)
    return sum(n * matches.errors_percent[f"nodes {k}"] for k, n in count.items()) / len(rows)


def steps() -> None:
    """Steps of GPTs."""
    single = read_rows(MEASURED / "vtrain_single_node.csv")
    multi = [
        dataclasses.replace(row, weight=MULTI_WEIGHT)
        for row in read_rows(MEASURED / "vtrain_multi_node.csv")
    ]
    system = with_constants(td.System.load("dgx-a100-megatron"), BEFORE, "assumed")
    print("single node alone\n" + calibrate(system, single).to_text())
    joint = calibrate(system, [*single, *multi], folds=10)
    print("both\n" + joint.to_text())
    print(f"several nodes, out of fold: {several_nodes(multi, joint):.2f} %\n")
    print("| not fitted to | mean error, % | bias, % | rows |\n|--|--:|--:|--|")
    for name in ("sc21_table1", "korthikanti_table5"):
        print(f"| {name} | {tested(read_rows(MEASURED / f'{name}.csv'), joint)} |")


def family(*names: str) -> None:
    """Steps of GPTs on the system ``a100``, to which no step is fitted, as markdown."""
    system = td.System.load("a100")
    print("| rows | measured, s | predicted, s | error, % |\n|--|--:|--:|--:|")
    for name in names or ("korthikanti_table5", "sc21_table1", "vtrain_multi_node"):
        errors = []
        for row in read_rows(MEASURED / f"{name}.csv"):
            time_s = td.simulate(program_of(row), system).time_s
            errors.append(100 * (time_s / row.time_s - 1))
            text = f"{row.layers} x {row.hidden}, tp {row.tp}, pp {row.pp}, dp {row.dp}"
            text += f", {row.recompute}"
            print(f"| {text} | {row.time_s:.2f} | {time_s:.2f} | {errors[-1]:+.1f} |", flush=True)
        mean, bias = np.abs(errors).mean(), np.mean(errors)
        print(f"| {name}: mean {mean:.1f}, bias {bias:+.1f} | | | |", flush=True)


def products() -> None:
    """Matrix products, timed one by one."""
    for name, system in (("a100_pcie", "dgx-a100-megatron"), ("b200", "dgx-b200-megatron")):
        result = calibrate(system, MEASURED / f"products_{name}.csv")
        print(f"products, {name}\n" + result.to_text())


def quantized() -> None:
    """Products of a layer, each of which quantizes both operands, against those in bfloat16."""
    with (MEASURED / "products_quantized.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    print("| measured on | system | dtype | speedup | predicted |\n|--|--|--|--:|--:|")
    quantizations = [Profile.load(name).quantization for name in QUANTIZING]
    by_dtype = {chosen.dtype: chosen for chosen in quantizations if chosen is not None}
    for row in rows:
        if row["dtype"] == "bfloat16":
            plain_ms, plain_s = float(row["time_ms"]), _layer_s(row, None)
            continue
        speedup = plain_ms / float(row["time_ms"])
        predicted = plain_s / _layer_s(row, by_dtype[row["dtype"]])
        print(
            f"| {row['device']} | `{row['system']}` | {row['dtype']} | {speedup:.2f} "
            f"| {predicted:.2f} |"
        )


def _layer_s(row: dict[str, str], chosen: Quantization | None) -> float:
    """Return the seconds of the twelve products of a layer, and of their quantization."""
    system = td.System.load(row["system"])
    tokens, hidden, ffn = (int(row[key]) for key in ("tokens", "hidden", "ffn"))
    bits = chosen.bits if chosen else 16
    product = system.rate("matmul", chosen.dtype if chosen else "bfloat16")
    copy = system.rate("memory", "bfloat16")
    time_s = 0.0
    for k, n in ((hidden, 3 * hidden), (hidden, hidden), (hidden, ffn), (ffn, hidden)):
        for a, b, c in ((tokens, k, n), (tokens, n, k), (k, tokens, n)):
            operands = (a * b, b * c)
            moved = sum(operands) * bits / 8 + 2 * a * c
            time_s += float(product.spent_s(2.0 * a * b * c, moved).total)
            if chosen is not None:
                for size in operands:  # of which two copies are written
                    moved = 2 * size * (chosen.passes + bits / 8)
                    time_s += float(copy.spent_s(0.0, moved).total)
    return time_s


def perceptrons() -> None:
    """Data-parallel perceptrons on V100 whose links nobody told."""
    near = ("intra_node.bandwidth_GBps", "intra_node.share")
    rows = MEASURED / "v100_mlp.csv"
    for folds in (5, 2):
        result = calibrate(MEASURED / "v100-mlp.json", rows, fit_also=near, folds=folds)
        print(f"perceptrons, {folds} folds\n" + result.to_text())


def serving() -> None:
    """Kernels of serving engines, each predicted from all others, as markdown."""
    print(
        "| tables | kernels | dtype | count | refused | median error, % | mean |\n"
        "|--|--|--|--:|--:|--:|--:|"
    )
    systems = [td.System.load(name) for name in system_names()]
    for system in sorted(systems, key=lambda single: single.kernel_tables):
        tables = system.tables
        for (kernel, dtype), table in tables.tables.items() if tables is not None else ():
            errors = 100 * np.abs(left_out_errors(table))
            print(
                f"| `{system.kernel_tables}` | {kernel} | {dtype} | {errors.size} "
                f"| {table.refused} | {np.median(errors):.1f} | {errors.mean():.1f} |"
            )


def main() -> None:
    """Fit and print."""
    parts = {
        "steps": steps, "family": family, "products": products, "quantized": quantized,
        "perceptrons": perceptrons, "serving": serving,
    }  # fmt: skip
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()

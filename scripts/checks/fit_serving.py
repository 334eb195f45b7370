#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the tables of kernels of serving engines from measured kernels.

``python scripts/checks/fit_serving.py FOLDER`` reads ``serving_gemm_fit.csv``,
``serving_attention_fit.csv`` and ``serving_moe_fit.csv``, whose rows are those of
ai-dynamo/aiconfigurator, fits the form of each table, and writes
``tvm_distir/hardware/systems/data/kernels``. ``accuracy.py serving`` prints the errors.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import numpy as np
from fit_kernels import DEVICE_NAMES, rate
from scipy.optimize import least_squares
from tests.hardware.systems.expert_rows import work_rows

from tvm_distir.hardware.systems.device_reader import load_device
from tvm_distir.hardware.systems.expert_kernels import EXPERTS
from tvm_distir.hardware.systems.hardware import PowerLaw, of_dtype
from tvm_distir.hardware.systems.kernel_tables import TABLES, work_of

SOURCE = "ai-dynamo/aiconfigurator 095f58a (Apache-2.0)"
ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM"}
PROCESSORS = {"a100-sxm": 108, "h100-sxm": 132, "h200-sxm": 132, "b200": 148}
DTYPES = {
    "bfloat16": ("bfloat16", 2.0),
    "fp8": ("float8", 1.0),
    "fp8_block": ("float8_block", 1.0 + 4 / 128**2),
    "nvfp4": ("nvfp4", 0.5 + 1 / 16),
}
"""The dtypes of tables, and the bytes of an element with its part of the scales."""
NARROW = ("fp8", "nvfp4")
"""Dtypes of which rows of TensorRT-LLM hold more than the product, 14 us at the least. Its tables
have those of vLLM."""
NOT_GATED = ((2688, 1856), (4096, 2688))
"""Widths of the models, and of their experts, that have two products in the place of three."""
BEGIN = ((5.0, 0.6, 0.7, 1.2), (3.0, 0.6, 0.5, 3.0))
LEAST, MOST = (0.0, 0.02, 0.02, 1.0), (20.0, 1.0, 1.0, 8.0)
MOST_OF_EXPERTS = (100.0, 1.0, 1.0, 8.0)
Key = tuple[str, str, str, str]


def kernels(folder: Path) -> dict[Key, dict[tuple[float, ...], list[float]]]:
    """Read the microseconds of kernels by device, engine, class and dtype, then by sizes."""
    matches: dict[Key, dict[tuple[float, ...], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with (folder / "serving_gemm_fit.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes = tuple(float(row[key]) for key in "mnk")
            if row["gemm_dtype"] in DTYPES and min(sizes) > 0:
                key = (row["system"], row["engine"], "matmul", row["gemm_dtype"])
                if row["engine"] == "trtllm" and row["gemm_dtype"] in NARROW:
                    continue
                matches[key][sizes].append(float(row["time_us"]))
                if row["engine"] == "vllm" and row["gemm_dtype"] in NARROW:
                    other = (row["system"], "trtllm", "matmul", row["gemm_dtype"])
                    matches[other][sizes].append(float(row["time_us"]))
    with (folder / "serving_attention_fit.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            decodes = row["phase"] == "decode"
            heads, new = int(row["num_heads"]), 1 if decodes else int(row["isl"])
            sizes = (
                float(row["batch_size"]), new, new + (int(row["step"]) if decodes else 0), heads,
                int(row["num_key_value_heads"]) or heads, float(row["head_dim"]),
            )  # fmt: skip
            kernel = "attention_decode" if decodes else "attention"
            key = (row["system"], row["engine"], kernel, row["kv_cache_dtype"])
            matches[key][sizes].append(float(row["time_us"]))
    with (folder / "serving_moe_fit.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes = expert_sizes(row)
            for engine in ENGINES if sizes is not None and row["moe_dtype"] in DTYPES else ():
                if (row["system"], engine) in {key[:2] for key in matches}:
                    key = (row["system"], engine, EXPERTS, row["moe_dtype"])
                    matches[key][sizes].append(float(row["time_us"]))
    return matches


def expert_sizes(row: Mapping[str, str]) -> tuple[float, ...] | None:
    """Return the sizes of a measured kernel of gated experts, for all tokens of its devices."""
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
    tokens, hidden, inner, top_k, experts = (int(float(row[name])) for name in names)
    parts, groups = int(row["moe_tp_size"]), int(row["moe_ep_size"])
    if (hidden, inner) in NOT_GATED or groups > experts or inner < parts:
        return None
    stored, skew = experts // groups, row["distribution"].rpartition("_")[2]
    rows = work_rows(tokens, stored, top_k, experts)
    return (
        *(rows, stored, hidden, inner // parts, top_k, experts),
        0.0 if skew == "balanced" else float(skew),
    )


def fitted(device_name: str, kernel: str, dtype: str, rows: np.ndarray, width: float) -> PowerLaw:
    """Fit the form of a table to its rows, but for those that are faster than the peaks."""
    device = load_device(device_name)
    flops, moved = work_of(kernel, rows[:, :-1], width)
    time_us = rows[:, -1]
    peak = of_dtype(device.matmul_TFLOPs, dtype) * 1e6
    possible = time_us >= np.maximum(flops / peak, moved / (device.memory_bandwidth_GBps * 1e3))
    flops, moved, time_us = flops[possible], moved[possible], time_us[possible]

    def residuals(numbers: np.ndarray) -> np.ndarray:
        whole = rate(device, dtype, numbers).spent_s(flops, moved).total
        return np.asarray(np.log(1e6 * whole / time_us))

    most = MOST_OF_EXPERTS if kernel == EXPERTS else MOST
    solutions = [
        least_squares(residuals, begin, bounds=(LEAST, most), loss="soft_l1", f_scale=0.05)
        for begin in BEGIN
    ]
    best = min(solutions, key=lambda solution: float(solution.cost)).x
    return PowerLaw(*(float(f"{x:.4g}") for x in best), "fitted to the rows of the table")


def main() -> None:
    """Write the tables of each device and engine."""
    result = kernels(Path(sys.argv[1]))
    TABLES.mkdir(exist_ok=True)
    for system, engine in sorted({key[:2] for key in result}):
        device_name = DEVICE_NAMES[system]
        tables = []
        for (known, of_engine, kernel, dtype), by_sizes in sorted(result.items()):
            if (known, of_engine) != (system, engine):
                continue
            name, width = DTYPES[dtype]
            rows = np.array([(*k, np.median(v)) for k, v in sorted(by_sizes.items())], float)
            form = fitted(device_name, kernel, name, rows, width)
            table = {
                "kernel": kernel, "dtype": name, "element_bytes": width,
                "form": dataclasses.asdict(form),
            }  # fmt: skip
            lines = ",\n    ".join(json.dumps([float(f"{x:.6g}") for x in row]) for row in rows)
            lines = lines.replace(".0,", ",").replace(".0]", "]")
            tables.append(json.dumps(table)[:-1] + f', "rows": [\n    {lines}]}}')
        short = device_name.removesuffix("-sxm")
        head = {
            "schema_version": 1, "name": f"{short}-{engine}", "engine": ENGINES[engine],
            "processors": PROCESSORS[device_name], "source": SOURCE,
        }  # fmt: skip
        text = json.dumps(head)[:-1] + ', "tables": [\n  ' + ",\n  ".join(tables) + "]}\n"
        (TABLES / f"{short}-{engine}.json").write_text(text, encoding="utf-8")
        print(f"{short}-{engine}: {len(tables)} tables, {len(text) // 1024} KiB")


if __name__ == "__main__":
    main()

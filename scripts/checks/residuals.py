#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict measured training steps, and write the ratios that error bands are made of.

``python scripts/checks/residuals.py [--update]`` prints errors by group, as markdown;
``--update`` writes ``tvm_distir/planning/measured_steps.json``. The predictions of vTrain's 164
steps are in sample: the two constants of the host of the stack ``megatron-lm``, and six numbers of
``a100-sxm`` (``docs/accuracy.md``), come from a fit to them. Nothing is fitted to the other steps.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import tvm_distir as td
from tvm_distir.planning import Stack, StepOptions, Study, bits_of, program_family
from tvm_distir.planning.calibration.programs import program_of
from tvm_distir.planning.calibration.row_files import read_rows

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "benchmarks" / "measured"
TARGET = ROOT / "tvm_distir" / "planning" / "measured_steps.json"
GPTS = {
    "korthikanti_table5": "Korthikanti et al. 2022 (arXiv:2205.05198), table 5",
    "sc21_table1": "Narayanan et al. 2021 (arXiv:2104.04473), table 1",
    "vtrain_multi_node": "vTrain (arXiv:2312.12391), several nodes",
    "vtrain_single_node": "vTrain (arXiv:2312.12391), one node",
}
NEMO = "NVIDIA/dgxc-benchmarking v25.02.02 (Apache-2.0)"
MODELS = {
    "llama3.1-8b": "hf:llama-3.1-8b?seq=8192",
    "nemotron4-15b": "zoo:llama3?layers=32,hidden=6144,heads=48,kv_heads=8,ffn=24576,gated=0,"
    "activation=gelu_tanh,norm=layer,vocab=256000,seq=4096,dtype=bfloat16",
}
"""Nemotron 4 has squared ReLU, which costs what another activation does."""
MOST_DEVICES = 256
"""Steps of NeMo on more devices take long to predict, and are as far off."""
Group = tuple[str, str, str, int, str]


def gpts() -> Iterator[tuple[Group, float]]:
    """Yield the ratios of steps of GPTs on A100 by Megatron, without a stack and by its own."""
    system, stack = td.System.load("a100"), Stack.load("megatron-lm")
    for name, source in GPTS.items():
        for row in read_rows(MEASURED / f"{name}.csv"):
            program = program_of(row)
            family = program_family(program, row.pp)
            for software, known, kernels in (
                (system.kernels, system, system.kernels),
                (stack.name, stack.on(system), stack.options.kernels),
            ):
                time_s = td.simulate(program, known, kernels=kernels).time_s
                group = (software, system.device.name, family, 16, source)
                yield group, row.time_s / time_s


def nemo() -> Iterator[tuple[Group, float]]:
    """Yield the ratios of steps of NeMo on H100, without a stack and by its own."""
    with (MEASURED / "nemo_h100.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row["gpus"]) <= MOST_DEVICES]
    for row in rows:
        bits = bits_of(row["precision"])
        kernels = "fused" if bits == 16 else "fused-fp8"
        for stack in (None, "megatron-core"):
            study = _study(row, kernels, stack)
            family = program_family(study.program)
            group = (stack or kernels, "H100-SXM5-80GB", family, bits, NEMO)
            yield group, float(row["step_s"]) / study.result.time_s


def _study(row: dict[str, str], kernels: str, stack: str | None) -> Study:
    """Return the study of a row of NeMo, which has a distributed optimizer."""
    tp, cp, samples, batch = (int(row[key]) for key in ("tp", "cp", "mbs", "gbs"))
    axes = {"dp": int(row["gpus"]) // (tp * cp), "tp": tp, "cp": cp}
    strategy = "zero:stage=1" + "+megatron:sequence=1" * (tp > 1) + "+context_parallel" * (cp > 1)
    options = StepOptions(
        MODELS[row["model"]], strategy=strategy, mesh={k: n for k, n in axes.items() if n > 1},
        system="h100", batch=batch, micro_batches=batch // (axes["dp"] * samples),
        train={"optimizer": "adamw"}, kernels=kernels, stack=stack,
    )  # fmt: skip
    return Study.of(options)


def main() -> None:
    """Predict, print, and write."""
    ratios: dict[Group, list[float]] = {}
    for group, ratio in (*gpts(), *nemo()):
        ratios.setdefault(group, []).append(ratio)
    print("| software | device | plan | bits | source | rows | mean error, % | bias, % | most, % |")
    print("|--|--|--|--:|--|--:|--:|--:|--:|")
    for group, values in ratios.items():
        errors = 100 * (1 / np.array(values) - 1)
        print(
            f"| {' | '.join(map(str, group))} | {len(values)} | {np.abs(errors).mean():.1f} "
            f"| {errors.mean():+.1f} | {np.abs(errors).max():.1f} |"
        )
    if "--update" in sys.argv[1:]:
        keys = ("software", "device", "family", "bits", "source")
        groups = [
            {**dict(zip(keys, group, strict=True)), "ratios": [round(r, 4) for r in values]}
            for group, values in ratios.items()
        ]
        lines = ",\n".join(f" {json.dumps(group)}" for group in groups)
        TARGET.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

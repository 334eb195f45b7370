#!/usr/bin/env python
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Latencies of serving engines, predicted against those of measured rows.

``python scripts/checks/serving_rows.py FILE.csv [COLUMN=TEXT|TEXT ...]`` reads rows of
ai-dynamo/aiconfigurator (``model_path``, ``system``, ``backend``, ``isl``, ``osl``, ``tp_size``,
``concurrency``, ...; ``ttft_ms`` and ``tpot_ms`` are means), of which some are selected.
Prints the command of each row, errors of the means, medians by model, system and engine, and what
is lost by choosing among measured ways of serving by their predictions: for each model, system,
lengths and level of TPOT, that of the most predicted tokens per second and device is compared with
the best by measurement.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tvm_distir.hardware import System
from tvm_distir.planning.serving.batching import SchedulerOptions
from tvm_distir.planning.serving.levels import ServiceLevels
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.serving_engine import ServingEngine
from tvm_distir.planning.serving.serving_run import ServingSetup, run_deployment
from tvm_distir.planning.serving.workload import Workload
from tvm_distir.support import DistIRError

MODELS = {
    "meta-llama/Llama-3.1-70B": "zoo:llama3?size=3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "zoo:llama3?size=3.1-8b",
    "Qwen/Qwen3-32B": "zoo:qwen3?size=32b",
    "Qwen/Qwen3-235B-A22B-FP8": "zoo:qwen3?size=235b-a22b",
    "deepseek-ai/DeepSeek-R1": "zoo:deepseek?size=v3",
}
SYSTEMS = {"a100_sxm": "a100", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200"}
ENGINES = {"vllm": "serving", "trtllm": "trtllm", "sglang": "serving"}
"""Kernels of SGLang are taken to be those of vLLM."""
KERNELS = {
    "": "serving", "fp8": "serving:weights=fp8", "fp4": "serving:weights=nvfp4",
    "fp8_block": "serving:weights=fp8-block",
}  # fmt: skip
BLOCKS = ("Qwen/Qwen3-235B-A22B-FP8", "deepseek-ai/DeepSeek-R1")
"""Models whose float8 weights have a scale per block."""
SCHEDULERS = {"sglang": "prefill_first:tokens=8192,requests=1024"}
"""SGLang fills caches in steps of their own by default, before others decode."""
SCHEDULER = "continuous:tokens=8192,requests=1024"
NARROW = "float8_e4m3fn"
WIDE_CACHES = ("a100_sxm", "h100_sxm", "h200_sxm")
"""Systems on which vLLM is taken to keep 16-bit caches, its default: with caches of 8 bits, errors
of rows of H100 grow with the tokens in caches, to -23 %."""
LEVELS_MS = (10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0)
"""Levels of TPOT for which ways of serving are chosen."""
SLACK = 0.05
PER_USER = 10
"""Requests per user of a measured run, all of which are counted."""
SPREAD = 0.8
"""Lengths are uniform between this share and the whole, as InferenceX draws them."""


def command_of(row: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of ``tvm-distir serve-analyze``; None for rows that it does not model."""
    users = row["concurrency"] or row["batch_size"]
    known = row["model_path"] in MODELS and row["system"] in SYSTEMS and row["backend"] in ENGINES
    if row["mode"] != "agg" or not known or not users or row["pp_size"] not in ("", "1", "1.0"):
        return None
    devices = int(float(row["tp_size"]))
    parts = [float(row[f"moe_{kind}_size"] or 1) or 1 for kind in ("tp", "ep")]
    if row["attention_dp_size"] not in ("", "0", "0.0", "1", "1.0") or (
        row["model_path"] in BLOCKS and parts[0] * parts[1] != devices
    ):
        return None  # attention is divided by requests, or sizes contradict each other
    count = int(float(users))
    lengths = [int(float(row[key])) for key in ("isl", "osl")]
    least = [int(SPREAD * length) for length in lengths]
    if row["origin"].startswith("NVIDIA"):
        least = lengths
    precision = row["precision"]
    if row["model_path"] in BLOCKS and precision == "fp8":
        precision = "fp8_block"
    wide = row["backend"] == "vllm" and row["system"] in WIDE_CACHES
    texts = [
        f"uniform:{low}-{high}" if low < high else str(high)
        for low, high in zip(least, lengths, strict=True)
    ]
    return {
        "model": MODELS[row["model_path"]],
        "mesh": f"tp={devices}",
        "system": f"{SYSTEMS[row['system']]}-{ENGINES[row['backend']]}",
        "kernels": KERNELS[precision],
        "kv-dtype": NARROW if row["precision"] and not wide else "",
        "workload": f"closed:{count},in={texts[0]},out={texts[1]},count={PER_USER * count}",
        "scheduler": SCHEDULERS.get(row["backend"], SCHEDULER),
    }


@cache
def engine(model: str, mesh: str, system: str, kernels: str, kv_dtype: str) -> ServingEngine:
    """Return an engine, its surface computed once."""
    known = replace(System.load(system), kernels=kernels)
    served = ServedModel(model, "megatron", {"tp": int(mesh[3:])}, known, kv_dtype)
    return ServingEngine.of(served, SchedulerOptions.parse(SCHEDULER))


def engine_of(options: Mapping[str, str]) -> ServingEngine:
    """Return the engine of the options of a row."""
    names = ("model", "mesh", "system", "kernels", "kv-dtype")
    known = engine(*(options[name] for name in names))
    return known.with_options(SchedulerOptions.parse(options["scheduler"]))


def modelled(path: str, words: Sequence[str]) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return the rows of a file that words select, with their options."""
    filters = dict(word.split("=", 1) for word in words)
    with open(path, encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if all(any(t in row[k] for t in v.split("|")) for k, v in filters.items())
        ]
    pairs = ((row, command_of(row)) for row in rows)
    return [(row, options) for row, options in pairs if options is not None]


def predicted_ms(options: Mapping[str, str]) -> tuple[float, float]:
    """Return the means of TTFT and TPOT in milliseconds."""
    setup = ServingSetup(engine_of(options))
    summary, _ = run_deployment(setup, Workload.parse(options["workload"]), ServiceLevels())
    return 1e3 * summary.ttft.mean_s, 1e3 * summary.tpot.mean_s


@dataclass(frozen=True)
class ServedRow:
    """Measured way of serving, with its prediction.

    Attributes
    ----------
    setting : tuple of str
        Model, system, and lengths of prompts and answers.
    users, devices, output_tokens : int
    predicted_ms, measured_ms : (float, float)
        The means of TTFT and TPOT.
    """

    setting: tuple[str, ...]
    users: int
    devices: int
    output_tokens: int
    predicted_ms: tuple[float, float]
    measured_ms: tuple[float, float]

    def rate(self, times_ms: tuple[float, float]) -> float:
        """Return the output tokens per second and device of users that always wait for one."""
        first, each = times_ms
        life_s = 1e-3 * (first + (self.output_tokens - 1) * each)
        return self.users * self.output_tokens / life_s / self.devices


def regrets(rows: Sequence[ServedRow]) -> list[float]:
    """Return the share of the best measured rate that each choice by prediction loses.

    A choice that breaks the level by more than :data:`SLACK`, or is none where there are some,
    loses all.
    """
    places: dict[tuple[str, ...], list[ServedRow]] = defaultdict(list)
    for row in rows:
        places[row.setting].append(row)
    lost = []
    for choices in places.values():
        for level in LEVELS_MS:
            best = [r.rate(r.measured_ms) for r in choices if r.measured_ms[1] <= level]
            if len(choices) < 2 or not best:
                continue
            known = [r for r in choices if r.predicted_ms[1] <= level]
            chosen = max(known, key=lambda r: r.rate(r.predicted_ms), default=None)
            if chosen is None or chosen.measured_ms[1] > level * (1 + SLACK):
                lost.append(1.0)
            else:
                lost.append(max(0.0, 1 - chosen.rate(chosen.measured_ms) / max(best)))
    return lost


def print_regrets(rows: Sequence[ServedRow]) -> None:
    """Print the regret of choices by model and system."""
    print(
        "\n| choices | count | broken levels | mean regret of others, % | of all, % |\n"
        "|--|--:|--:|--:|--:|"
    )
    groups = sorted({row.setting[:2] for row in rows})
    for name, chosen in (*((" ".join(group), group) for group in groups), ("all", ())):
        lost = np.array(regrets([row for row in rows if row.setting[: len(chosen)] == chosen]))
        if lost.size:
            remaining = 100 * lost[lost < 1]
            means = (
                f"{remaining.mean():.1f} | {100 * lost.mean():.1f}"
                if remaining.size
                else "- | 100.0"
            )
            print(f"| {name} | {lost.size} | {lost.size - remaining.size} | {means} |")


def main() -> None:
    """Print rows, medians of groups, and the regret of choices."""
    served: list[ServedRow] = []
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, options in modelled(sys.argv[1], sys.argv[2:]):
        text = " ".join(f"--{k} {v}" if k != "model" else v for k, v in options.items() if v)
        try:
            times = predicted_ms(options)
        except DistIRError as error:
            print(f"{text}: {error}", flush=True)
            continue
        errors = [
            100 * (time / float(row[key]) - 1)
            for time, key in zip(times, ("ttft_ms", "tpot_ms"), strict=True)
        ]
        print(
            f"{text}: TTFT {times[0]:.1f} of {row['ttft_ms']} ms ({errors[0]:+.1f} %), "
            f"TPOT {times[1]:.2f} of {row['tpot_ms']} ms ({errors[1]:+.1f} %)",
            flush=True,
        )
        name = f"{row['model_path']} {row['system']} {row['precision'] or 'bf16'} {row['backend']}"
        groups[f"{name} ({row['origin']})"].append((errors[0], errors[1]))
        served.append(
            ServedRow(
                tuple(row[key] for key in ("model_path", "system", "isl", "osl")),
                int(float(row["concurrency"] or row["batch_size"])),
                int(options["mesh"][3:]),
                int(float(row["osl"])),
                times,
                (float(row["ttft_ms"]), float(row["tpot_ms"])),
            )
        )
    print("\n| rows | count | TTFT: median, bias, % | TPOT: median, bias, % |\n|--|--:|--:|--:|")
    for name, errors_of in sorted(groups.items()):
        table = np.array(errors_of)
        medians, bias = np.median(np.abs(table), axis=0), np.median(table, axis=0)
        print(
            f"| {name} | {len(table)} | {medians[0]:.1f}, {bias[0]:+.1f} "
            f"| {medians[1]:.1f}, {bias[1]:+.1f} |"
        )
    print_regrets(served)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Analyze models of today on 8 to 16,384 devices, as a new user asks, and check what fits.

::

    .venv/bin/python scripts/checks/fitting_verdicts.py            # all rows, about 5 minutes
    .venv/bin/python scripts/checks/fitting_verdicts.py --only deepseek

A row fits if somebody published that it ran, and does not fit if its weights, gradients and states
alone are more than the memory (2 bytes a weight, 12 a master copy and the states of Adam). Other
rows must only be answered. Exit 1: a wrong verdict, or an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "--train --optimizer adamw"
FITS, DOES_NOT_FIT = 0, 3
"""Exit codes of ``analyze`` with an answer."""


@dataclass(frozen=True)
class Row:
    """Arguments of ``analyze``, the known verdict, and how it is known."""

    arguments: str
    fits: bool | None = None
    known_by: str = ""


ROWS = (
    Row(f"hf:llama-3.1-8b --batch 8 {TRAIN} --strategy data_parallel --mesh dp=8 --system h100",
        False, "arithmetic: 8.0e9 * 14 bytes"),
    Row(f"hf:llama-3.1-8b?seq=8192 --batch 16 {TRAIN} --strategy fsdp --mesh dp=8 --system h100 "
        "--recompute selective", True, "torchtitan"),
    Row(f"hf:llama-3.1-8b?seq=8192 --batch 256 {TRAIN} --strategy fsdp --mesh dp=128 "
        "--system h100 --recompute selective", True, "torchtitan"),
    Row("hf:llama-3.1-8b --batch 8 --strategy megatron --mesh tp=8 --system h100", True,
        "arithmetic: 2 GB of weights"),
    Row(f"hf:llama-3.1-70b --batch 8 {TRAIN} --strategy fsdp --mesh dp=8 --system h100 "
        "--recompute full", False, "arithmetic: 70.6e9 * 14 bytes / 8"),
    Row(f"hf:llama-3.1-70b --batch 64 {TRAIN} --strategy fsdp --mesh dp=64 --system h100 "
        "--recompute full"),
    Row(f"hf:llama-3.1-70b?seq=8192 --batch 32 {TRAIN} --strategy fsdp+megatron "
        "--mesh dp=32,tp=8 --system h100 --recompute full"),
    Row(f"hf:llama-3.1-405b --batch 64 {TRAIN} --strategy fsdp --mesh dp=64 --system h100 "
        "--recompute full", False, "arithmetic: 405.9e9 * 14 bytes / 64"),
    Row(f"hf:llama-3.1-405b?seq=8192 --batch 2048 {TRAIN} --strategy "
        "pipeline:micro_batches=32,schedule=1f1b+zero:stage=1+megatron:sequence=1 "
        "--mesh pp=16,dp=64,tp=8 --system h100 --recompute selective", True,
        "The Llama 3 Herd of Models, table 4"),
    Row(f"hf:llama-3.1-405b?seq=8192 --batch 2048 {TRAIN} --strategy "
        "pipeline:micro_batches=16,schedule=1f1b+zero:stage=1+megatron:sequence=1 "
        "--mesh pp=16,dp=128,tp=8 --system h100 --recompute selective", True,
        "The Llama 3 Herd of Models, table 4"),
    Row("hf:llama-3.1-405b --batch 8 --strategy megatron --mesh tp=8 --system h100", False,
        "arithmetic: 405.9e9 * 2 bytes / 8"),
    Row(f"hf:mixtral-8x7b-v0.1 --batch 8 {TRAIN} --strategy fsdp --mesh dp=8 --system h100 "
        "--recompute full", False, "arithmetic: 46.7e9 * 14 bytes / 8"),
    Row(f"hf:mixtral-8x7b-v0.1 --batch 64 {TRAIN} --strategy zero:stage=1+expert_parallel "
        "--mesh dp=8,ep=8 --system h100 --recompute selective"),
    Row("hf:mixtral-8x7b-v0.1 --batch 8 --strategy data_parallel+expert_parallel "
        "--mesh dp=1,ep=8 --system h100", True, "arithmetic: 11.7 GB of weights"),
    Row("hf:deepseek-v3 --batch 8 --strategy data_parallel+expert_parallel --mesh dp=1,ep=8 "
        "--system h100", False, "arithmetic: 671e9 * 2 bytes / 8"),
    Row("hf:deepseek-v3 --batch 32 --strategy data_parallel+expert_parallel --mesh dp=1,ep=32 "
        "--system h200"),
    Row(f"hf:deepseek-v3 --batch 2048 {TRAIN} --strategy "
        "pipeline:micro_batches=16+zero:stage=1+expert_parallel --mesh pp=16,dp=2,ep=64 "
        "--system h100 --recompute full"),
    Row("hf:gpt-oss-20b --batch 8 --strategy data_parallel+expert_parallel --mesh dp=1,ep=8 "
        "--system h100", True, "arithmetic: 5.2 GB of weights"),
    Row(f"hf:gpt-oss-120b --batch 8 {TRAIN} --strategy fsdp --mesh dp=8 --system h100 "
        "--recompute full", False, "arithmetic: 117e9 * 14 bytes / 8"),
    Row(f"hf:gpt-oss-120b --batch 64 {TRAIN} --strategy fsdp --mesh dp=64 --system h100 "
        "--recompute full"),
)  # fmt: skip


def main() -> int:
    """Run the rows, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="rows whose arguments contain this text")
    only = parser.parse_args().only
    print("| analyze | step, s | GiB | fits | known | CPU, s |\n|--|--:|--:|--|--|--:|")
    wrong = 0
    for row in ROWS:
        if only not in row.arguments:
            continue
        begun = os.times()
        done = subprocess.run(
            [str(Path(sys.executable).parent / "tvm-distir"), "analyze",
             *shlex.split(row.arguments), "--advice", "bounds", "--json"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        ended = os.times()
        duration = ended.children_user - begun.children_user
        if done.returncode not in (FITS, DOES_NOT_FIT):
            wrong += 1
            print(f"| `{row.arguments}` | error: {done.stderr.strip()[:200]} |", flush=True)
            continue
        answer = json.loads(done.stdout)
        is_wrong = row.fits is not None and row.fits != answer["fits"]
        wrong += is_wrong
        known = {True: "fits", False: "does not", None: ""}[row.fits]
        cells = (
            f"`{row.arguments}`", f"{answer['time_s']:.3g}",
            f"{answer['peak_memory_bytes'] / 2**30:.1f}", "yes" if answer["fits"] else "no",
            f"{known}{', ' * bool(known)}{row.known_by}{' WRONG' * is_wrong}", f"{duration:.1f}",
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"{wrong} wrong, {time.strftime('%Y-%m-%d')}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

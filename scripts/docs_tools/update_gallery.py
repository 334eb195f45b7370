#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Predict the recipes of the gallery, and write its table and commands into docs/gallery.md.

::

    .venv/bin/python scripts/docs_tools/update_gallery.py           # rewrite the page
    .venv/bin/python scripts/docs_tools/update_gallery.py --check   # exit 1: out of date
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slots import rewrite_pages

ROOT = Path(__file__).resolve().parents[2]
FILES = ("docs/gallery.md",)
GPT = "seq=2048,positions=2048,vocab=51200,dtype=float16,dropout=0.1,fused_qkv=1"
TORCHTITAN = (
    "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md"
)
FITS, DOES_NOT_FIT = 0, 3
"""Exit codes of ``analyze`` with an answer."""

_SLOT = re.compile(r"(?<=<!-- table:gallery:start -->\n)(.*?)(?=<!-- table:gallery:end -->)", re.S)


@dataclass(frozen=True)
class Measurement:
    """A published measurement of a recipe.

    Attributes
    ----------
    per_device_per_s : float
        Tokens per second and device.
    note : str
        Where it was published, and how the run differs from the recipe.
    """

    per_device_per_s: float
    note: str


@dataclass(frozen=True)
class Recipe:
    """A step to predict: a title, the arguments of ``analyze``, and what was measured, if known."""

    title: str
    arguments: str
    measured: Measurement | None = None

    def predict(self) -> dict[str, Any]:
        """Return the prediction of ``tvm-distir analyze --json``.

        Raises
        ------
        RuntimeError
            The command gave no answer.
        """
        words = ["analyze", *shlex.split(self.arguments), "--advice", "bounds", "--json"]
        done = subprocess.run(
            [str(Path(sys.executable).parent / "tvm-distir"), *words],
            cwd=ROOT,
            env=dict(os.environ, PYTHONHASHSEED="0"),
            capture_output=True,
            text=True,
        )
        if done.returncode not in (FITS, DOES_NOT_FIT):
            raise RuntimeError(f"{self.title}: exit {done.returncode}\n{done.stderr}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


def _tokens_per_s(samples: int, seq: int, step_s: float, devices: int) -> float:
    """Return tokens per second and device of a step whose time was published."""
    return samples * seq / step_s / devices


RECIPES = (
    Recipe(
        "Llama 3.1 8B, 8 H100 of 500 W, FSDP",
        "'hf:llama-3.1-8b?seq=8192' --batch 16 --train --optimizer adamw --strategy fsdp "
        "--mesh dp=8 --system h100-500w --recompute alternate --kernels torch-compile",
        Measurement(
            6667.0,
            f"torchtitan, [December 2024]({TORCHTITAN}), table 1, with "
            "`torch.compile` (5,762 without, as `--kernels torch-eager` describes). Its H100 have "
            "500 W and HBM2e with 2.4 TB/s. Products under this limit are as FBGEMM measured them.",
        ),
    ),
    Recipe(
        "Llama 3.1 8B, 8 H100 of 500 W, FSDP, float8",
        "'hf:llama-3.1-8b?seq=8192' --batch 16 --train --optimizer adamw --strategy fsdp "
        "--mesh dp=8 --system h100-500w --recompute alternate --kernels torch-compile-fp8",
        Measurement(8532.0, "torchtitan, table 1 of the same page, with `torch.compile`."),
    ),
    Recipe(
        "Llama 3.1 8B, 128 H100 of 500 W, FSDP",
        "'hf:llama-3.1-8b?seq=8192' --batch 256 --train --optimizer adamw --strategy fsdp "
        "--mesh dp=128 --system h100-500w --recompute alternate --kernels torch-compile",
        Measurement(
            6514.0, "torchtitan, table 3 of the same page, with `torch.compile` (5,605 without)."
        ),
    ),
    Recipe(
        "Llama 3.1 70B, 256 H100, pipeline, ZeRO-1 and tensor parallelism",
        "hf:llama-3.1-70b --batch 256 --train --optimizer adamw "
        "--strategy pipeline:micro_batches=32+zero:stage=1+megatron --mesh pp=4,dp=8,tp=8 "
        "--system h100 --recompute selective",
    ),
    Recipe(
        "GPT 22B, 8 A100, tensor parallelism",
        f"'zoo:gpt?layers=48,hidden=6144,heads=64,{GPT}' --batch 4 --train --optimizer adam "
        "--strategy data_parallel+megatron --mesh dp=1,tp=8 --system a100 --recompute checkpoint "
        "--kernels megatron-lm --ahead-bytes 0 --bucket-bytes 0",
        Measurement(
            _tokens_per_s(4, 2048, 1.42, 8),
            "Megatron-LM, Korthikanti et al. 2022 (arXiv:2205.05198), table 5. No collective was "
            "overlapped, as `--ahead-bytes 0 --bucket-bytes 0` states, and kernels were those of "
            "2022, as `--kernels megatron-lm` states.",
        ),
    ),
    Recipe(
        "GPT 76B, 1,024 A100, interleaved pipeline, data and tensor parallelism",
        f"'zoo:gpt?layers=60,hidden=10240,heads=80,{GPT}' --batch 1792 --train --optimizer adam "
        "--strategy pipeline:micro_batches=28,schedule=interleaved,chunks=3+data_parallel+megatron "
        "--mesh pp=4,dp=32,tp=8 --system a100 --recompute checkpoint "
        "--kernels megatron-lm --ahead-bytes 0 --bucket-bytes 0",
        Measurement(
            _tokens_per_s(1792, 2048, 16.057809, 1024),
            "Megatron-LM, Narayanan et al. 2021 (arXiv:2104.04473), table 1, from its TFLOP/s by "
            "its formula.",
        ),
    ),
    Recipe(
        "Mixtral 8x7B, 64 H100, ZeRO-1 and expert parallelism",
        "hf:mixtral-8x7b-v0.1 --batch 64 --train --optimizer adamw "
        "--strategy zero:stage=1+expert_parallel --mesh dp=8,ep=8 --system h100 "
        "--recompute selective",
    ),
    Recipe(
        "DeepSeek V3, prefill on 32 H200, expert parallelism",
        "hf:deepseek-v3 --batch 32 --strategy data_parallel+expert_parallel --mesh dp=1,ep=32 "
        "--system h200",
    ),
    Recipe(
        "ViT-L/16, 8 A100, data parallelism",
        "'zoo:vit?size=vit-l16,dtype=bfloat16' --batch 1024 --train --optimizer adamw "
        "--strategy data_parallel --mesh dp=8 --system a100",
    ),
    Recipe(
        "Diffusion U-Net, 8 H100, data parallelism",
        "'zoo:unet?dtype=bfloat16' --batch 64 --strategy data_parallel --mesh dp=8 --system h100",
    ),
)


def gallery() -> str:
    """Return the table of all recipes, and the command and the source of each."""
    header = ("recipe", "step, s", "per device", "MFU", "memory, GiB", "measured", "error")
    rows = [header, ("--",) + ("--:",) * (len(header) - 1)]
    sections = []
    for recipe in RECIPES:
        rows.append(_row(recipe, recipe.predict()))
        sections.append(f"### {recipe.title}\n\n```console\n{_command(recipe.arguments)}```\n")
        if recipe.measured is not None:
            sections.append(_wrap(f"Measured: {recipe.measured.note}"))
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return table + "\n## Recipes\n\n" + "\n".join(sections) + "\n"


def _row(recipe: Recipe, answer: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a recipe in the table."""
    throughput = answer["throughput"]
    unit = "samples" if throughput["tokens"] is None else "tokens"
    rate = throughput[f"{unit}_per_s_per_device"]
    peak = f"{answer['peak_memory_bytes'] / 2**30:.1f}"
    measured = recipe.measured
    return (
        recipe.title,
        f"{answer['time_s']:.3g}",
        f"{rate:,.0f} {unit}/s",
        f"{100 * throughput['mfu']:.0f}%",
        peak if answer["fits"] else f"{peak}, does not fit",
        "" if measured is None else f"{measured.per_device_per_s:,.0f} {unit}/s",
        "" if measured is None else f"{100 * (rate / measured.per_device_per_s - 1):+.0f}%",
    )


def _command(arguments: str) -> str:
    """Return the command in lines of at most 100 characters, as a person would type it."""
    lines = ["$ tvm-distir analyze"]
    for part in re.split(r" (?=--)", arguments):
        if len(lines[-1]) + len(part) < 96:
            lines[-1] += f" {part}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {part}")
    return "\n".join(lines) + "\n"


def _wrap(text: str) -> str:
    """Return a paragraph in lines of at most 110 characters."""
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False) + "\n"


def regenerate(text: str) -> str:
    """Return a page with the gallery written anew."""
    return _SLOT.sub(lambda match: gallery(), text)


def main() -> int:
    """Rewrite or check the gallery."""
    return rewrite_pages((__doc__ or "").splitlines()[0], ROOT, FILES, regenerate)


if __name__ == "__main__":
    sys.exit(main())

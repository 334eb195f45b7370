#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of the README and of the task pages from the answers that they show.

::

    .venv/bin/python scripts/docs_tools/update_pictures.py           # draw them anew
    .venv/bin/python scripts/docs_tools/update_pictures.py --check   # exit 1: out of date

A picture is a bar chart in SVG, in ``docs/_static/tasks``.
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from slots import rewrite_pages
from tvm.ir import IRModule

import tvm_distir as td
from tvm_distir.support.display import units

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/_static/tasks"
LLAMA = "hf:llama-3.1-8b"
ADAMW = {"optimizer": "adamw"}
SERVED_RATES = (8, 16, 24, 32)
"""Requests per second of the picture of serving."""

_WIDTH, _LEFT, _RIGHT, _TOP, _STEP, _BAR = 760, 200, 110, 66, 30, 18
_COLORS = ("#3b6fe0", "#1a9e96", "#8a5bd6", "#e07b2c", "#9aa3b2", "#d0486f", "#4ca33b")


class Row(NamedTuple):
    """A bar: its label, its parts, the words behind it, and the ends of its error band."""

    label: str
    parts: Sequence[float]
    words: str
    band: tuple[float, float] | None = None


def bars(
    title: str, parts: Sequence[str], rows: Sequence[Row], limit: tuple[float, str] | None = None
) -> str:
    """Return a bar chart.

    Parameters
    ----------
    title : str
    parts : sequence of str
        The legend: what the parts of each bar are.
    rows : sequence of Row
    limit : (float, str), optional
        A value that is drawn as a line, and its words.
    """
    ends = [row.band[1] if row.band else sum(row.parts) for row in rows]
    most = max([*ends, *([limit[0]] if limit else [])]) * 1.02
    height = _TOP + _STEP * len(rows) + (30 if limit else 12)
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    x = 16.0
    for name, color in zip(parts, _COLORS, strict=False):
        lines.append(f'<rect x="{x:.0f}" y="38" width="11" height="11" fill="{color}"/>')
        lines.append(f'<text x="{x + 16:.0f}" y="48" fill="#444444">{escape(name)}</text>')
        x += 34 + 7.2 * len(name)
    for number, row in enumerate(rows):
        x, y = float(_LEFT), _TOP + _STEP * number
        label = escape(row.label).replace("  ", "\u2003")
        lines.append(f'<text x="16" y="{y + 14}">{label}</text>')
        for value, color in zip(row.parts, _COLORS, strict=False):
            width = value * scale
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{color}"/>'
            )
            x += width
        if row.band is not None:
            low, high = (_LEFT + end * scale for end in row.band)
            middle = y + _BAR / 2
            lines.append(
                f'<path d="M{low:.1f},{middle - 5} v10 m0,-5 H{high:.1f} m0,-5 v10" '
                'fill="none" stroke="black"/>'
            )
            x = max(x, high)
        lines.append(f'<text x="{x + 8:.1f}" y="{y + 14}">{escape(row.words)}</text>')
    if limit is not None:
        x, bottom = _LEFT + limit[0] * scale, _TOP + _STEP * len(rows)
        lines.append(
            f'<path d="M{x:.1f},{_TOP - 8} V{bottom}" stroke="#c62828" stroke-dasharray="5 3"/>'
        )
        lines.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="end" fill="#c62828">'
            f"{escape(limit[1])}</text>"
        )
    return "\n".join([*lines, "</svg>", ""])


@functools.cache
def _llama(system: str, strategy: str, mesh: str, batch: int = 8) -> td.AnalysisResult:
    axes = {name: int(size) for name, size in (part.split("=") for part in mesh.split(","))}
    return td.analyze(
        LLAMA, system=system, strategy=strategy, mesh=axes, batch=batch, train=ADAMW,
        advice="bounds",
    )  # fmt: skip


def _roles(results: Mapping[str, td.AnalysisResult], title: str) -> str:
    """Draw the peak memory by role of some plans beside the memory of a device."""
    found: dict[str, dict[str, int]] = {}
    for name, result in results.items():
        (lane, *_) = result.to_dict()["memory"]
        found[name] = lane["at_peak"]
    roles = list(dict.fromkeys(role for parts in found.values() for role in parts))
    rows = [
        Row(name, [parts.get(role, 0) for role in roles], units.size(sum(parts.values())))
        for name, parts in found.items()
    ]
    capacity = next(iter(results.values())).report.capacity_bytes
    limit = (float(capacity), f"memory of a device: {units.size(capacity)}") if capacity else None
    return bars(title, roles, rows, limit)


def _causes(results: Mapping[str, td.AnalysisResult], title: str) -> str:
    """Draw the step times of some plans by their causes, with error bands."""
    causes = ("compute", "memory", "launch", "communication", "idle")
    rows = []
    for name, result in results.items():
        spent, band = result.report.spent_s, result.to_dict()["band"]
        ends = (band["low_s"], band["high_s"])
        rows.append(Row(name, [spent[c] for c in causes], units.duration(result.time_s), ends))
    return bars(title, causes, rows)


def answer() -> str:
    """Draw the first table of a report: the time of modules by pass."""
    result = _llama("h100", "fsdp", "dp=8")
    passes = ("forward", "backward", "optimizer")
    rows: list[Row] = []

    def add(nodes: Sequence[Mapping[str, object]], depth: int) -> None:
        for node in nodes:
            spent = [float(str(node[f"{name}_s"])) for name in passes]
            if sum(spent) > 0.004 * result.time_s:
                words = f"{units.duration(sum(spent))} ({units.share(sum(spent), result.time_s)})"
                rows.append(Row("  " * depth + str(node["module"]), spent, words))
                if depth < 2:
                    add(node["children"], depth + 1)  # type: ignore[arg-type]

    add(result.to_dict()["modules"], 0)
    rate = result.to_dict()["throughput"]["tokens_per_s"]
    fits = "fits" if result.report.fits else "does not fit"
    title = (
        f"Llama 3.1 8B, training step on 8 H100 (fsdp): {units.duration(result.time_s)}, "
        f"{units.count(rate)} tokens/s, {fits} with {units.size(result.peak_memory_bytes)}"
    )
    return bars(title, passes, rows)


def fit() -> str:
    """Draw the memory of three strategies."""
    names = ("data_parallel", "zero:stage=1", "fsdp")
    results = {name: _llama("h100", name, "dp=8") for name in names}
    return _roles(results, "Peak memory of a device: Llama 3.1 8B, AdamW, 8 H100")


def plan() -> str:
    """Draw the step times of three plans."""
    plans = (("fsdp", "dp=8"), ("zero:stage=1", "dp=8"), ("data_parallel+megatron", "dp=2,tp=4"))
    results = {name: _llama("h100", name, mesh) for name, mesh in plans}
    return _causes(results, "Step time by cause, and its error band: Llama 3.1 8B, 8 H100")


def gpu() -> str:
    """Draw the step times of five systems."""
    systems = ("a100", "h100", "h200", "b200", "mi300x")
    results = {name: _llama(name, "fsdp", "dp=8") for name in systems}
    return _causes(results, "Step time by cause, and its error band: Llama 3.1 8B, fsdp on 8 GPUs")


def cluster() -> str:
    """Draw the step times of two plans on the cluster of the page."""
    page = (ROOT / "docs/tasks/cluster.md").read_text(encoding="utf-8")
    text = page.partition("```json\n")[2].partition("```")[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "my-cluster.json"
        path.write_text(text, encoding="utf-8")
        plans = (("fsdp", "dp=16"), ("hsdp", "pod=2,dp=8"))
        results = {
            f"{name} on {mesh}": _llama(str(path), name, mesh, batch=16) for name, mesh in plans
        }
        title = f"Step time by cause: Llama 3.1 8B on 16 devices of {json.loads(text)['name']}"
        return _causes(results, title)


def module() -> str:
    """Draw the part of each tensor of the module of the page that a device holds."""
    page = (ROOT / "docs/tasks/module.md").read_text(encoding="utf-8")
    original = td.from_tvmscript(page.partition("```python\n")[2].partition("```")[0])
    local = td.distribute(original, td.Plan(mesh={"tp": 2}, rules={"up": td.P(None, "tp")}))
    return _held(original, local, "What one of two devices holds of each tensor")


def run() -> str:
    """Draw the part of each weight of the model of the page that a rank loads."""
    original = td.zoo.mlp(size="tiny")
    local = td.distribute(original, td.planning.make_plan(original, "tensor_parallel", {"tp": 2}))
    return _held(original, local, "What one of two ranks of the folder holds: mlp, tensor_parallel")


def _held(original: IRModule, local: IRModule, title: str) -> str:
    """Draw the bytes of the tensors of a function that are on one of the devices."""
    here = _sizes(local)
    rows = [
        Row(name, [here[name], size - here[name]], f"{here[name]:,} of {size:,} B")
        for name, size in _sizes(original).items()
        if name in here
    ]
    return bars(title, ("this device", "the other"), rows)


def _sizes(found: IRModule) -> dict[str, int]:
    """Return the bytes in float32 of the parameters of a function, and of what they make.

    Of a model whose parameters have names with dots, these are its weights.
    """
    main = found["main"]
    values = [*main.params, *(b.var for block in main.body.blocks for b in block.bindings)]
    shapes = {str(value.name): [int(size) for size in value.ty.shape] for value in values}
    weights = {name: shape for name, shape in shapes.items() if name.endswith(("weight", "bias"))}
    return {name: 4 * math.prod(shape) for name, shape in (weights or shapes).items()}


def check() -> str:
    """Draw the verdict on each output of the program of the page, which PyTorch traces."""
    page = (ROOT / "docs/tasks/check.md").read_text(encoding="utf-8")
    hints = ("x:dp=0", "y:dp=0", "up:tp=1", "down:tp=0")
    with tempfile.TemporaryDirectory() as folder:
        text = page.partition("```python\n")[2].partition("```")[0]
        (Path(folder) / "trace.py").write_text(text, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "tvm_distir_command", "check", ".", "--json"]
        command += [word for hint in hints for word in ("--hint", hint)]
        subprocess.run([sys.executable, "trace.py"], cwd=folder, env=environment, check=True)
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    verdict = json.loads(done.stdout)
    wrong = verdict["wrong"]
    rows = [
        Row(name, [float(name not in wrong), float(name in wrong)],
            "wrong" if name in wrong else "equal")
        for name in verdict["outputs"]
    ]  # fmt: skip
    title = f"{verdict['verdict'].upper()} at {verdict['line']}; repair: {verdict['repair']}"
    return bars(title, ("equal to the reference", "wrong"), rows)


def serve() -> str:
    """Draw the time to the first token over the rate of requests."""
    rows = []
    for rate in SERVED_RATES:
        result = td.serve_analyze(
            LLAMA, "megatron", {"tp": 2}, "h100", workload=f"poisson:{rate},in=1024,out=256"
        ).to_dict()
        times = result["summary"]["ttft"]
        parts = [times["p50_s"], times["p90_s"] - times["p50_s"], times["p99_s"] - times["p90_s"]]
        rows.append(Row(f"{rate} requests/s", parts, units.duration(times["p99_s"])))
    title = "Time to first token: Llama 3.1 8B on 2 H100, 1,024 tokens in, 256 out"
    return bars(title, ("half of the requests", "nine of ten", "99 of 100"), rows)


PICTURES: dict[str, Callable[[], str]] = {
    "answer": answer,
    "fit": fit,
    "plan": plan,
    "gpu": gpu,
    "cluster": cluster,
    "module": module,
    "serve": serve,
    "run": run,
    "check": check,
}


def main() -> int:
    """Draw all pictures."""
    draw = iter(PICTURES.values())
    files = [f"{FOLDER}/{name}.svg" for name in PICTURES]
    return rewrite_pages(str(__doc__), ROOT, files, lambda old: next(draw)())


if __name__ == "__main__":
    raise SystemExit(main())

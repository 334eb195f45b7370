# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``td.sweep``: rows per second of a structure that is known, and what it takes to know one.

The rows are GPT configurations of one structure: 32 layers on 8 stages x dp 4 x tp 4, all else
varied. The first sweep finds the structure, with an empty cache; those behind it have its samples
on disk. What it takes to read and fit these is told apart, and so are the rows that are taken
through the whole pipeline too. What each of these leaves behind is collected where it was made:
else the collector, which a sweep pauses, would look through it while rows are written.

The second table has plans of a model, each of which goes through the whole pipeline, first on one
system and then on another: how many programs are made for them, and the rows per second.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from measure import parser, print_setting, table

import tvm_distir as td
from tvm_distir.planning.sweep import partition as learning
from tvm_distir.planning.sweep import sweep_run
from tvm_distir.planning.sweep.pipeline import ProgramPipeline

MODEL = "zoo:gpt?layers=32,dropout=0.1,fused_qkv=1"
HIDDEN = [str(size) for size in range(4096, 10241, 256)]
GRID = {
    "tp": ["4"], "pp": ["8"], "dp": ["4"], "hidden": HIDDEN, "heads": ["16", "32", "64"],
    "seq": ["2048", "4096"], "vocab": [str(size) for size in range(48000, 64001, 400)],
}  # fmt: skip
PLANS = {
    "tp": ["1", "2", "4"], "pp": ["2", "4"], "dp": ["2", "4"], "zero": ["0", "1"],
    "micro_batches": ["8"], "schedule": ["1f1b", "gpipe"],
}  # fmt: skip
"""Plans of a model, of which no two have a structure in common."""
MICRO_BATCHES = {"3 numbers of micro-batches": ("8", "16", "64"), "1": ("32",)}


class Apart:
    """CPU seconds of what is told apart."""

    def __init__(self) -> None:
        self.seconds = {"structure": 0.0, "checked": 0.0}
        sweep: Any = sweep_run.SweepRun
        learner: Any = learning.TemplateLearner
        sweep._checked = self._timed(sweep._checked)
        learner.parts = self._drawn(learner.parts)

    def _timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.process_time()
            result = work(*arguments)
            gc.collect()
            self.seconds["checked"] += time.process_time() - start
            return result

        return timed

    def _drawn(self, work: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def drawn(*arguments: Any) -> Iterator[Any]:
            parts = work(*arguments)
            while True:
                start = time.process_time()
                single = next(parts, None)
                if single is None:
                    gc.collect()
                self.seconds["structure"] += time.process_time() - start
                if single is None:
                    return
                yield single

        return drawn


def measured(apart: Apart, micro_batches: tuple[str, ...], cache: str) -> dict[str, float]:
    """One sweep, its CSV text included."""
    apart.seconds = dict.fromkeys(apart.seconds, 0.0)
    start = time.process_time()
    result = td.sweep(
        MODEL, {**GRID, "micro_batches": micro_batches}, "dgx-a100-megatron",
        train={"optimizer": "adamw"}, cache=cache,
    )  # fmt: skip
    result.to_csv()
    whole = time.process_time() - start
    way = result.header.index("way")
    assert all(row[way] == "structure" for row in result.rows)
    local = whole - sum(apart.seconds.values())
    return {
        **apart.seconds,
        "rows": local,
        "count": len(result.rows),
        "checks": len(result.checked),
    }


def shared(cache: str) -> Iterator[list[str]]:
    """Sweep plans row by row on a system, and on another one with the same cache."""
    pipeline: Any = ProgramPipeline
    make, made = pipeline.study, list[Any]()

    def counted(made_by: Any, row: Any) -> Any:
        made.append(row)
        return make(made_by, row)

    pipeline.study = counted
    for system in ("a100", "h100"):
        made.clear()
        start = time.process_time()
        rows = td.sweep(
            "zoo:gpt?size=gpt3-6.7b,layers=8,dropout=0.1,fused_qkv=1", PLANS, system,
            train={"optimizer": "adamw"}, cache=cache,
        ).rows  # fmt: skip
        spent_s = time.process_time() - start
        rate = len(rows) / spent_s
        yield [system, f"{len(rows)}", f"{len(made)}", f"{spent_s:.1f}", f"{rate:.2f}"]
    pipeline.study = make


def main() -> None:
    """Print the tables."""
    options = parser(__doc__).parse_args()
    print_setting()
    apart, rows = Apart(), []
    with tempfile.TemporaryDirectory() as folder:
        for name, micro_batches in MICRO_BATCHES.items():
            first = measured(apart, micro_batches, f"{folder}/{len(micro_batches)}")
            later = [
                measured(apart, micro_batches, f"{folder}/{len(micro_batches)}")
                for _ in range(options.repeat)
            ]
            best = min(later, key=lambda single: single["rows"])
            known = min(each["structure"] for each in later)
            rows.append(
                [
                    name, f"{best['count']:,}", f"{first['structure']:.1f}", f"{known:.1f}",
                    f"{best['rows']:.2f}", f"{best['count'] / best['rows']:,.0f}",
                    f"{best['checked'] / best['checks']:.2f}",
                ]
            )  # fmt: skip
    header = [
        "micro-batches", "rows", "structure, s", "from disk, s", "rows, s", "rows/s",
        "a checked row, s",
    ]  # fmt: skip
    table(header, rows)
    with tempfile.TemporaryDirectory() as folder:
        table(["system", "plans", "programs made", "s", "rows/s"], [*shared(folder)])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run training steps in stages, nested with other strategies, and compare with one device.

``scripts/checks/verify_pipelines.py`` runs all rows; ``--only WORD`` those whose text holds the
word,
``--engine E`` on another engine than ``virtual``. Every row is a step of one model, cut into stages
and micro-batches and distributed by one plan; loss, new weights and optimizer states are compared
with those of the step at once on one device (where the capacity of experts or the statistics of
batch norms follow from the micro-batch, with those of the micro-batches in turn). Exits 1 when a
row is not equal.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy
from tvm_distir.transforms.training.pipeline.expand_passes import SerializePipeline

BATCH = 16
GPT = "zoo:gpt?size=tiny,layers=4,hidden=32,heads=4,vocab=64,seq=8"
LLAMA = "zoo:llama?size=tiny,layers=4,hidden=32,vocab=64,seq=8"
BERT = "zoo:bert?size=tiny,layers=4,hidden=32,vocab=64,seq=8"
VIT = "zoo:vit?size=tiny,layers=4,hidden=32"
MOE = "zoo:moe?size=tiny,layers=4,hidden=32,vocab=64,seq=8"
RESNET = "zoo:resnet?size=tiny"
BY_MICRO_BATCH = (MOE, RESNET)
"""Capacities and statistics follow from the micro-batch."""

KINDS = ("gpipe", "1f1b", "interleaved", "zero_bubble", "zero_bubble_v")
TOLERANCE = 2e-4
"""Most relative to the largest value of an output; Adam divides by what may be nearly zero."""


@dataclass(frozen=True)
class Case:
    """One row."""

    model: str
    kind: str
    stages: int
    micros: int
    others: str
    mesh: dict[str, int]
    options: dict[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The row in words."""
        mesh = ",".join(f"{axis}={n}" for axis, n in {"pp": self.stages, **self.mesh}.items())
        more = "".join(f" {key}={value}" for key, value in self.options.items())
        name = self.model.removeprefix("zoo:").partition("?")[0]
        return f"{name} {self.kind} M={self.micros} {self.others} {mesh}{more}"


def cases() -> Iterator[Case]:
    """Yield all rows: at most 16 devices."""
    nested = (
        ("data_parallel", {"dp": 2}),
        ("data_parallel", {"dp": 4}),
        ("megatron", {"tp": 2}),
        ("megatron:sequence=1", {"tp": 2}),
        ("data_parallel+megatron", {"dp": 2, "tp": 2}),
        ("data_parallel+megatron", {"tp": 2, "dp": 2}),
        ("zero:stage=1", {"dp": 2}),
        ("zero:stage=2", {"dp": 2}),
        ("zero:stage=3", {"dp": 2}),
        ("zero:stage=1+megatron", {"dp": 2, "tp": 2}),
        ("zero:stage=3+megatron", {"dp": 2, "tp": 2}),
        ("tensor_parallel", {"tp": 2}),
        ("data_parallel+tensor_parallel", {"dp": 2, "tp": 2}),
        ("context_parallel", {"cp": 2}),
        ("data_parallel+context_parallel", {"dp": 2, "cp": 2}),
        ("context_parallel+megatron", {"cp": 2, "tp": 2}),
    )
    for number, (others, mesh) in enumerate(nested):
        first, second = KINDS[number % len(KINDS)], KINDS[(number + 1) % len(KINDS)]
        yield Case(GPT, first, 2, 4, others, mesh)
        yield Case(
            GPT, second, 4, (2, 4, 8)[number % 3] if mesh.get("dp", 1) < 4 else 4, others, mesh
        )
    for model in (LLAMA, BERT, VIT):
        yield Case(model, "1f1b", 2, 4, "data_parallel+megatron", {"dp": 2, "tp": 2})
        yield Case(model, "zero_bubble", 4, 4, "data_parallel", {"dp": 2})
        yield Case(model, "interleaved", 2, 2, "zero:stage=1", {"dp": 2})
    for kind in KINDS:
        yield Case(MOE, kind, 2, 2, "data_parallel+expert_parallel", {"dp": 2, "ep": 2})
    for kind, others, mesh in (
        ("gpipe", "data_parallel", {"dp": 2}),
        ("interleaved", "zero:stage=3", {"dp": 2}),
        ("zero_bubble", "tensor_parallel", {"tp": 2}),
        ("zero_bubble_v", "spatial_parallel", {"sp": 2}),
    ):
        yield Case(RESNET, kind, 2, 2, others, mesh, {"optimizer": "sgd"})
    yield Case(MOE, "1f1b", 2, 4, "expert_parallel", {"ep": 2})
    for options in (
        {"recompute": "full"},
        {"recompute": "selective"},
        {"clip": 0.1},
        {"loss_scale": "dynamic"},
        {"rate_input": True},
        {"frozen": ("wte.*",)},
    ):
        yield Case(GPT, "1f1b", 3, 4, "data_parallel+megatron", {"dp": 2, "tp": 2}, options)
    yield Case(GPT, "zero_bubble_v", 2, 8, "data_parallel", {"dp": 2}, {"recompute": "full"})


def difference(case: Case, engine: str) -> float:
    """Largest difference of an output, relative to its largest value."""
    options = {"optimizer": "adam", **case.options}
    schedule = {"kind": case.kind, "stages": case.stages, "micro_batches": case.micros}
    if case.kind == "interleaved":
        schedule["chunks"] = 2
    micro = td.load_model(case.model, batch=BATCH // case.micros).mod
    step = td.train_step(micro, schedule=schedule, **options)
    whole = SerializePipeline()(step)
    if case.model not in BY_MICRO_BATCH:
        whole = td.train_step(td.load_model(case.model, batch=BATCH).mod, **options)
    values = draw_inputs(whole, seed=0)
    expected = Reference(whole).run(values)
    words = f"pipeline:schedule={case.kind},micro_batches={case.micros}"
    if case.kind == "interleaved":
        words += ",chunks=2"
    plan = strategy.make_plan(step, f"{words}+{case.others}", {"pp": case.stages, **case.mesh})
    got = td.run(td.distribute(step, plan), values, engine=engine)
    worst = 0.0
    for left, other in zip(got, expected, strict=True):
        scale = float(np.max(np.abs(other), initial=1e-3))
        worst = max(worst, float(np.max(np.abs(left - other), initial=0.0)) / scale)
    return worst


def main() -> int:
    """Print a line per row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="rows whose text holds this word")
    parser.add_argument("--engine", default="virtual")
    args = parser.parse_args()
    wrong = []
    rows = [case for case in cases() if args.only in case.text]
    for case in rows:
        start = time.perf_counter()
        try:
            apart = difference(case, args.engine)
        except td.support.DistIRError as error:
            print(f"{case.text}: REFUSED {error}", flush=True)
            wrong.append(case)
            continue
        good = apart <= TOLERANCE
        verdict = "equal" if good else "DIFFERENT"
        took_s = time.perf_counter() - start
        print(f"{case.text}: {verdict} ({apart:.0e}), {took_s:.0f} s", flush=True)
        if not good:
            wrong.append(case)
    print(f"{len(rows)} steps in stages, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps whose collectives are merged into buckets give the bits of those of single collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.execution.runtime.engines.registry import engine as engine_named

SIZES = {"layers": 2, "hidden": 16, "heads": 2, "vocab": 24, "positions": 8, "seq": 8, "batch": 4}


def drawn_inputs(ports: Any) -> list[Any]:
    """Draw the inputs of a training step by their ports."""
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 3, [int(n) for n in port["shape"]]).astype("int32")
        if str(port["dtype"]) == "int32"
        else rng.random([int(n) for n in port["shape"]]).astype(str(port["dtype"]))
        for port in ports
    ]


def _calls(engine: Any) -> int:
    return sum(row.count for row in engine.collectives)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [("data_parallel", "virtual"), ("zero:stage=1", "threads"), ("zero:stage=3", "threads")],
)
def test_buckets_change_no_bits_and_run_few_collectives(strategy: str, name: str) -> None:
    """Two terms have one sum, in whatever order they are added."""
    step = td.train_step(td.zoo.build("gpt", SIZES), optimizer="adamw")
    plan = td.planning.make_plan(step, strategy, {"dp": 2})
    results, counts = [], []
    for bucket_bytes in (0, "unit"):
        dist = td.distribute(step, plan, bucket_bytes=bucket_bytes)
        engine = engine_named(name)
        results.append(
            td.run(dist, drawn_inputs(dist["main"].attrs["dist.io"]["inputs"]), engine=engine)
        )
        counts.append(_calls(engine))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
    assert 3 * counts[1] < counts[0]

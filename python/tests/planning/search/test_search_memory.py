# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Searches within a memory limit, under fused kernels."""

from __future__ import annotations

from typing import Any

import tvm_distir as td
from tests.planning.search.systems import QUICK
from tvm_distir.planning.search.auto_sharding import auto_shard
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.driver import search
from tvm_distir.planning.search.result import SearchResult


def _model(batch: int) -> Any:
    return td.zoo.gpt(size="tiny", layers=1, vocab=8192, batch=batch, dtype="bfloat16")


def _searched(limit: int | None = None) -> SearchResult:
    return search(
        _model, 2, td.System.load("h100"), batch=8, train={"optimizer": "adam"}, top=99,
        constraints=Constraints(fixed={"dp": 1, "tp": 2}, recompute=("none",)), memory_bytes=limit,
        why=limit is not None,
    )  # fmt: skip


def test_what_fused_kernels_do_not_store_needs_no_memory() -> None:
    """A plan that fits in simulation is a result at that limit, without micro-batches."""
    (free,) = [each for each in _searched().plans if not each.row.why]
    assert free.row.peak_bytes is not None
    limited = _searched(free.row.peak_bytes)
    assert free.time_s in {each.time_s for each in limited.plans}
    assert "memory" not in limited.space
    assert limited.why  # placements of the best plan's weights are compared within the same limit


def test_meshes_on_which_no_values_fit_are_not_tried() -> None:
    """What one mesh proves holds of all: none of those that are skipped fits."""
    step = td.zoo.gpt(size="tiny", layers=2, batch=64)
    fitting = auto_shard(td.train_step(step, optimizer="adam", recompute="full"), {"a": 4}, QUICK)
    limit = int(1.08 * fitting.peak_bytes)
    rows = {}
    for margin in (0.01, 99.0):  # with the second, all meshes are tried
        result = search(
            step, 4, QUICK, train={"optimizer": "adam"}, margin=margin,
            constraints=Constraints(recompute=("none", "full")), memory_bytes=limit,
        )  # fmt: skip
        assert {plan.row.candidate.recompute for plan in result.plans} == {"full"}
        rows[margin] = {row.candidate.key: row for row in result.rows}
    skipped, tried = rows.values()
    assert {key: row.time_s for key, row in skipped.items()} == {
        key: row.time_s for key, row in tried.items()
    }
    keys = [key for key, row in skipped.items() if "mesh of any shape" in row.why]
    assert keys
    for key in keys:
        assert skipped[key].state == tried[key].state == "memory"
        assert limit < skipped[key].needs_bytes <= tried[key].needs_bytes

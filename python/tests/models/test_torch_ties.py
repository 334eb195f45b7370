# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Sparse attention whose scores have ties, as those of an indexer with ReLU have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

import tvm_distir as td  # noqa: E402
from tests.models.stable_ties import StableTies  # noqa: E402
from tvm_distir.core.plan.plan import Plan  # noqa: E402

BATCH, SEQ, WIDTH, KEPT = 2, 32, 8, 20


class SparseMean(torch.nn.Module):
    """The mean of the rows with the largest scores, most of which ReLU sets to zero."""

    def forward(self, scores: Any, x: Any) -> Any:
        scores = torch.relu(scores)
        kept = scores.topk(KEPT, dim=-1).indices
        mask = torch.zeros_like(scores).scatter(-1, kept, 1.0)
        return mask @ x / KEPT


@pytest.mark.parametrize("placement", ["S[0]", "S[1]", "S[2]"])
def test_ties_of_topk_go_to_the_lowest_indices_on_every_device(placement: str) -> None:
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(BATCH, SEQ, SEQ, generator=draw)
    x = torch.randn(BATCH, SEQ, WIDTH, generator=draw)
    model = SparseMean().eval()
    with StableTies() as ties:
        expected = model(scores, x)
    assert ties.rows > 0 and not torch.allclose(model(scores, x), expected, atol=1e-3)
    mod = td.from_exported_program(torch.export.export(model, (scores, x)))
    rules = [{"param": "scores", "placement": placement}]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"dp": 2}, "rules": rules})
    inputs = {"scores": scores.numpy(), "x": x.numpy()}
    (result,) = td.run(td.distribute(mod, plan), inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("largest", [True, False])
def test_without_ties_the_choice_is_that_of_torch(largest: bool) -> None:
    x = torch.randn(4, 5, 9, generator=torch.Generator().manual_seed(0))
    for dim in (0, 1, -1):
        with StableTies() as ties:
            values, chosen = x.topk(3, dim, largest)
        plain = x.topk(3, dim, largest)
        assert ties.rows == 0
        assert torch.equal(values, plain.values) and torch.equal(chosen, plain.indices)

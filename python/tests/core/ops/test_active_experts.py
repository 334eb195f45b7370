# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Experts that work on few tokens: the count against draws of a router, and its laws."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_distir.core.ops import active_experts

SIZES = [("DeepSeek-V3", 256, 8), ("Qwen3", 128, 8), ("GPT-OSS", 32, 4), ("Mixtral", 8, 2)]


@pytest.mark.parametrize(("name", "experts", "top_k"), SIZES)
@pytest.mark.parametrize("parts", [1, 4])
def test_the_count_is_that_of_a_uniform_router(name, experts, top_k, parts):
    """The mean over draws, rounded up, of the experts of the first device."""
    rng, stored = np.random.default_rng(5), experts // parts
    for tokens in (1, 2, 7, 40):
        ranks = rng.random((2000, tokens, experts)).argsort(-1)[..., :top_k]
        hit = np.zeros((2000, experts), bool)
        np.put_along_axis(hit, ranks.reshape(2000, -1), True, 1)
        mean = hit[:, :stored].sum(1).mean()
        got = int(active_experts(stored, experts, top_k, tokens))
        assert mean - 0.1 * top_k <= got <= min(stored, max(1, mean + 1 + 0.1 * top_k)), name


@pytest.mark.parametrize(("name", "experts", "top_k"), SIZES)
def test_the_count_never_falls_and_never_exceeds_all(name, experts, top_k):
    tokens = np.arange(1, 5000)
    for stored in {experts, experts // 4, 1}:
        count = active_experts(stored, experts, top_k, tokens)
        assert (np.diff(count) >= 0).all(), name
        assert count[0] == max(1, stored * top_k / experts)
        assert count[-1] == stored
    assert active_experts(experts, experts, experts, 1) == experts

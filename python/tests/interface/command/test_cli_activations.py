# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Activations of a layer as ``analyze`` counts them, against formulas.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equations
1 to 5 and table 2, in units of ``s b h`` bytes, at half precision. Of attention's ``5 a s / h`` a
softmax takes two bytes, its dropped-out result two and the mask one: so it is with the policy
``megatron``. With ``none`` the softmax is kept in float32, and masks are drawn again: four, two and
none.
"""

from __future__ import annotations

import itertools
import json

import pytest

from tests.nightly import nightly_but
from tests.plain_systems import PLAIN_A100
from tvm_distir.interface.command import main

SEQ, TP = 2048, 8
SIZES = {"22B": (6144, 64), "175B": (12288, 96)}
"""Hidden width and heads: table 3 there."""
FEW, MORE = 4, 6
"""Layers: what the ends of the model hold at the same time is in both."""


def formula(policy: str, sequence: bool, hidden: int, heads: int) -> float:
    """Bytes of a layer per element of an activation."""
    whole, cut = (0, 34) if sequence else (10, 24)
    scores = {"none": 4 + 2 + 0, "megatron": 2 + 2 + 1}.get(policy, 0) * heads * SEQ / hidden
    if policy in ("checkpoint", "full"):
        return 2 / TP if sequence else 2  # what the layer is given, of which each has its part
    return whole + (cut + scores) / TP


POLICIES = ("none", "megatron", "core", "checkpoint", "full")
CASES = list(itertools.product(POLICIES, (False, True), SIZES))
DAILY = {n for n, (policy, _, size) in enumerate(CASES) if size == "22B" or policy == "megatron"}


@pytest.mark.parametrize(("policy", "sequence", "size"), nightly_but(CASES, DAILY))
def test_a_layer_keeps_what_the_formula_says(
    policy: str, sequence: bool, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden, heads = SIZES[size]
    matches = []
    for layers in (FEW, MORE):
        model = f"zoo:gpt?size=tiny,hidden={hidden},heads={heads},layers={layers},seq={SEQ}"
        model += f",positions={SEQ},vocab=51200,batch=1,dtype=float16,dropout=0.1"
        plan = ["--strategy", f"megatron:sequence={int(sequence)}", "--mesh", f"tp={TP}"]
        inputs = ["--train", "--recompute", policy, "--system", PLAIN_A100, "--advice", "bounds"]
        assert main(["analyze", model, *plan, *inputs, "--json"]) == 0
        (memory,) = json.loads(capsys.readouterr().out)["memory"]
        matches.append(memory["most"]["stashes"])
    remaining = (matches[1] - matches[0]) / (MORE - FEW) / (SEQ * hidden)
    assert remaining == pytest.approx(formula(policy, sequence, hidden, heads), rel=0.02)

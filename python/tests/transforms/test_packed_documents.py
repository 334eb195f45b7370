# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Packed documents: steps next to padded ones, shards next to one device, work next to a count."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.core.ir.operators import AttentionOptions
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.support.errors.tree import LoweringError, ModelError
from tvm_distir.transforms import with_documents

LENGTHS = (3, 4, 5)
SIZES = {
    "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 64,
    "dtype": "float32",
}  # fmt: skip


def model(seq, batch, **more):
    return td.zoo.llama(**SIZES, seq=seq, batch=batch, **more)


def names_of(step):
    return [str(name) for name in step["main"].attrs["dist.param_names"]]


def run(step, data, weights):
    """The loss, and the new weights by name."""
    names = names_of(step)
    values = {**weights, **dict(zip(names[:2], data, strict=True))}
    loss, *new = Reference(step).run([values[name] for name in names])
    return loss, dict(zip([n for n in names if n in weights], new, strict=True))


def weights_of(step):
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(0, 0.3, [int(n) for n in param.ty.shape]).astype("float32")
        for name, param in zip(names_of(step)[2:], step["main"].params[2:], strict=True)
    }


@pytest.mark.parametrize("more", [{}, {"window": 3}])
def test_packed_steps_are_padded_ones(more):
    """Three documents in a row, and one per row with padding, whose targets are not counted."""
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 64, (2, 1, 12)).astype("int32")
    padded = np.zeros((3, 5), "int32"), np.full((3, 5), -100, "int32")
    ends = np.cumsum(LENGTHS)
    for row, (length, end) in enumerate(zip(LENGTHS, ends, strict=True)):
        padded[0][row, :length] = tokens[0, end - length : end]
        padded[1][row, :length] = targets[0, end - length : end]
    one, other = (
        td.train_step(mod, "cross_entropy", rate=1.0)
        for mod in (with_documents(model(12, 1, **more), LENGTHS), model(12, 1, **more))
    )
    weights = weights_of(one)
    loss, new = run(one, (tokens, targets), weights)
    wanted, expected = run(td.train_step(model(5, 3, **more), rate=1.0), padded, weights)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(new[name], value, rtol=1e-4, atol=2e-6, err_msg=name)
    assert abs(run(other, (tokens, targets), weights)[0] - wanted) > 1e-4


@pytest.mark.parametrize(
    "strategy, mesh",
    [
        ("data_parallel+megatron", {"dp": 2, "tp": 2}),
        ("context_parallel:form=gather", {"cp": 2}),
        ("context_parallel", {"cp": 2}),
    ],
)
def test_sharded_steps_are_equal(strategy, mesh):
    step = td.train_step(with_documents(model(12, 2), LENGTHS))
    td.verify(step, td.planning.make_plan(step, strategy, mesh)).check()


def test_rings_are_refused():
    step = td.train_step(with_documents(model(12, 2), LENGTHS))
    plan = td.planning.make_plan(step, "context_parallel:form=ring", {"cp": 2})
    with pytest.raises(LoweringError, match=r"DIST0511 .*where packed documents begin"):
        td.distribute(step, plan)


@pytest.mark.parametrize("documents", [(), (512, 1024, 2560), (4096,)])
@pytest.mark.parametrize("window", [0, 700])
def test_pairs_are_those_of_a_hand_count(documents, window):
    """A kernel computes half of the block of a document, and no more keys than the window."""
    options = AttentionOptions(1.0, True, window, documents=documents)
    pairs = sum(n * min(n // 2, window or n) for n in documents or (4096,))
    assert options.pairs(4096, 4096) == pairs
    assert options.pairs(1024, 4096) == pairs // 4


def attention_of(packed):
    """FLOPs and time of attention on a device, and the time of the step."""
    found = td.analyze(
        "hf:llama-3.2-1b", strategy="fsdp", mesh={"dp": 8}, batch=8, seq=4096, system="h100",
        train=True, advice="bounds", packed=packed,
    ).to_dict()  # fmt: skip
    ops = [op for op in found["ops"] if op["op"].startswith("attention")]
    return sum(op["flops"] for op in ops), sum(op["time_s"] for op in ops), found["time_s"]


def test_attention_has_the_work_of_its_documents():
    """Forward 2 products of 2 FLOPs per pair, head and feature; backward 2.5 times that."""
    found = [attention_of(packed) for packed in (None, [512, 1024, 2560], [1024])]
    for (flops, _, _), lengths in zip(found, [(4096,), (512, 1024, 2560), (1024,) * 4]):
        pairs = sum(n * n // 2 for n in lengths)
        assert flops == 16 * 32 * pairs * 2 * (64 + 64) * 3.5
    for more, less in itertools.pairwise(found):
        assert more > less and more[1] > less[1] and more[2] > less[2]


@pytest.mark.parametrize(
    "lengths, message",
    [
        ((3, 4), "documents of 7 tokens do not fill a sequence of 12"),
        ((13,), "documents of 13 tokens do not fill a sequence of 12"),
        ((0, 12), "a length is not positive"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths, message):
    with pytest.raises(ModelError, match=f"DIST0355 .*{message}"):
        with_documents(model(12, 1), lengths)


def test_attention_that_is_not_causal_is_refused():
    with pytest.raises(ModelError, match=r"DIST0355 .*attention is not causal"):
        with_documents(td.zoo.bert(size="tiny"), (4,))

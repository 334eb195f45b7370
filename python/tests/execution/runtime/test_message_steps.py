# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The steps of collectives, on arrays of NumPy and on tensors of PyTorch, against their meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.execution.runtime.mpi_programs import calls, draw
from tvm_distir.core.collectives import Collective, apply
from tvm_distir.execution.runtime.collectives.array_operations import NUMPY
from tvm_distir.execution.runtime.collectives.message_steps import SMALL_BYTES, message_steps
from tvm_distir.execution.runtime.program.joining import same_bits

SIDES = ((2, 2), (0, 1, 2, 3))
EXCHANGE = Collective(
    "exchange",
    ((0, 1, 2, 3),),
    (("shape", (8, 1100)), ("src", (*SIDES, (0, 1))), ("dst", (*SIDES, (1, 0)))),
)
TO_TORCH = {"bfloat16": "int16", "float16": "float16"}


def after(arrays: Any, call: Collective, xs: list[Any]) -> list[Any]:
    """What the ranks of a group have after all steps, each of which hands on its messages."""
    ranks = [message_steps(arrays, call, i, arrays.contiguous(x)) for i, x in enumerate(xs)]
    steps: list[Any] = [next(rank) for rank in ranks]
    results: list[Any] = []
    while not results:
        arrived = [{j: steps[j].parts[i] for j in steps[i].shapes} for i in range(len(xs))]
        for step, parts in zip(steps, arrived):
            assert {j: tuple(part.shape) for j, part in parts.items()} == dict(step.shapes)
        for i, rank in enumerate(ranks):
            try:
                steps[i] = rank.send(arrived[i])
            except StopIteration as stop:
                results.append(stop.value)
    return results


CASES = [*((call, shape) for call in calls(((0, 1, 2, 3),)) for shape in [(4, 6), (8, 1101)])]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bool", "int8"])
def test_numpy(dtype: str) -> None:
    for call, shape in [*CASES, (EXCHANGE, (4, 550))]:
        xs = [draw(rank, shape, dtype) for rank in range(4)]
        for got, want in zip(after(NUMPY, call, xs), apply(call, xs), strict=True):
            assert same_bits(got, want), (call, shape)
    assert draw(0, (8, 1101), "float32").nbytes > SMALL_BYTES


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bool", "int8"])
def test_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed")
    from tvm_distir.execution.runtime.engines.torch.tensor_operations import TorchArrays

    arrays = TorchArrays(torch.device("cpu"))
    raw = TO_TORCH.get(dtype, dtype)
    for call, shape in [*CASES, (EXCHANGE, (4, 550))]:
        xs = [draw(rank, shape, dtype) for rank in range(4)]
        tensors = [torch.from_numpy(x.view(raw)).view(getattr(torch, dtype)) for x in xs]
        for got, want in zip(after(arrays, call, tensors), apply(call, xs), strict=True):
            values = got.contiguous().view(getattr(torch, raw)).numpy().view(want.dtype)
            assert same_bits(values, want), (call, shape)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_ops_that_need_no_other_rank(op: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed")
    from tvm_distir.execution.runtime.engines.torch.tensor_operations import TorchArrays

    arrays, x = TorchArrays(torch.device("cpu")), draw(0, (4, 6), dtype)
    group = ((0, 1),)
    local = [
        Collective("partial", group, (("op", op),)),
        Collective("local_slice", group, (("dim", 1),)),
        Collective("axis_index", group),
    ]
    for call in local:
        for position in (0, 1):
            want = NUMPY.local(call, x, position, 2)
            got = arrays.local(call, torch.from_numpy(x), position, 2)
            np.testing.assert_array_equal(got.numpy(), want)

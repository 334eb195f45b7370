# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Quantized weights beside adapters that are trained (QLoRA): their memory and their kernels."""

from __future__ import annotations

import pytest

import tvm_distir as td
from tvm_distir.performance.fusion.grouped import grouped
from tvm_distir.performance.fusion.quantization import DEQUANTIZE
from tvm_distir.support.errors.tree import UsageError

KEYS = {"size": "tiny", "dtype": "bfloat16"}
NF4 = "fused:weights=nf4"
BITS = 4.5


def program_of(strategy, mesh, **options):
    step = td.train_step(td.zoo.build("llama", KEYS), optimizer="adamw", master=True, **options)
    return td.export(td.distribute(step, td.planning.make_plan(step, strategy, mesh)))


@pytest.fixture(scope="module")
def adapted():
    return program_of("data_parallel", {"dp": 2}, lora="r=4")


def weights_of(program):
    main = program.functions[program.entries[0].function]
    return {main.values[p].name: main.values[p].bytes for p in main.params}


def test_frozen_matrices_take_their_bits_and_no_others(adapted):
    plain, narrow = weights_of(adapted), weights_of(grouped(adapted, NF4))
    projections = [n for n in plain if "_proj" in n and "lora" not in n]
    assert len(projections) == 14
    for name, size in plain.items():
        assert narrow[name] == (size * BITS / 16 if name in projections else size), name


def test_each_product_of_a_frozen_weight_reads_one_that_is_made_before(adapted):
    program = grouped(adapted, NF4)
    counts = {}
    for name, fn in program.functions.items():
        made = [op for op in fn.ops if op.op == DEQUANTIZE]
        counts[name] = len(made)
        for op in made:
            ((reader, _),) = fn.readers[op.outputs[0]]
            assert reader.model_op == "relax.matmul"
            assert op.bytes_written == fn.values[op.outputs[0]].bytes
            assert op.bytes_read == op.bytes_written * BITS / 16
    # A layer has seven frozen products, and as many gradients of their inputs, but for the first:
    # its input, which three of them read, has no gradient.
    assert sorted(n for n in counts.values() if n) == [4, 7, 7, 7]


def test_a_step_with_quantized_weights_takes_less_memory_and_more_time(adapted):
    plain = td.simulate(adapted, "h100", kernels="fused")
    quantized = td.simulate(adapted, "h100", kernels=NF4)
    assert quantized.peak_memory_bytes < plain.peak_memory_bytes
    assert quantized.time_s > plain.time_s


@pytest.mark.parametrize(
    ("strategy", "options"), [("data_parallel", {}), ("fsdp", {"lora": "r=4"})]
)
def test_trained_and_gathered_weights_are_not_quantized(strategy, options):
    program = program_of(strategy, {"dp": 2}, **options)
    with pytest.raises(UsageError, match="quantizes weights that are not trained"):
        grouped(program, NF4)

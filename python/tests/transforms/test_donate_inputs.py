# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Appends to donated caches are in place: equal results in the memory of the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.core.ir.attributes.keys import IO_ATTR
from tvm_distir.core.ir.operators import kv_append
from tvm_distir.execution.deployment.loading import load
from tvm_distir.execution.runtime.program.machines import make_machine
from tvm_distir.support.errors.tree import UsageError
from tvm_distir.transforms import DonateInputs

MODEL = "zoo:llama3?size=tiny,entry=serve,batch=2,seq=1,past=15,page=4,pools=2"


def inputs_of(mod: ir.IRModule) -> dict[str, Any]:
    """Random inputs with pages in any order and requests of uneven lengths."""
    rng = np.random.default_rng(0)
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    values = {}
    for name, param in zip(names, mod["main"].params, strict=True):
        shape = tuple(int(n) for n in param.ty.shape.values)
        values[name] = (rng.normal(size=shape) / 8).astype(str(param.ty.dtype))
    requests, pages = values["pages"].shape
    values["pages"] = np.stack([rng.permutation(pages) for _ in range(requests)]).astype("int32")
    values["lengths"] = np.array([5, 9], "int32")
    return values


@pytest.mark.parametrize(
    ("strategy", "mesh", "engine", "layers"),
    [
        ("megatron", {"tp": 2}, "threads", 2),
        ("context_parallel", {"cp": 2}, "virtual", 2),  # devices store some positions of a page
        ("pipeline+data_parallel", {"pp": 2, "dp": 2}, "virtual", 4),
    ],
)
def test_results_are_the_same_bits(strategy, mesh, engine, layers):
    mod = td.load_model(MODEL).mod
    dist = td.distribute(mod, td.planning.make_plan(mod, strategy, mesh))
    donated = DonateInputs()(dist)
    assert donated.script().count("in_place=True") == layers
    values = list(inputs_of(mod).values())
    given = [value.copy() for value in values]
    for a, b in zip(*(td.run(d, values, engine=engine) for d in (dist, donated)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(map(np.array_equal, values, given))  # engines take copies of arrays of NumPy


def test_a_deployed_step_writes_into_the_memory_of_its_caches(tmp_path):
    mod = td.load_model(MODEL.replace("pools=2", "pools=1")).mod
    dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 1}))
    values = inputs_of(mod)
    caches = [name for name in values if name.endswith("_cache")]
    (logits, *expected) = td.run(dist, list(values.values()), engine="virtual")
    td.deploy(DonateInputs()(dist), tmp_path / "step")
    deployed = load(tmp_path / "step")
    (entry,) = deployed.entries
    function = make_machine(deployed.library(entry))[entry.function]
    arrays = {name: tvm.runtime.tensor(value) for name, value in values.items()}
    results = [*function(*arrays.values())]
    np.testing.assert_allclose(results[0].numpy(), logits, rtol=1e-5, atol=1e-6)
    for name, result, value in zip(caches, results[1:], expected, strict=True):
        assert np.from_dlpack(result).ctypes.data == np.from_dlpack(arrays[name]).ctypes.data
        np.testing.assert_allclose(arrays[name].numpy(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_cache_that_is_read_otherwise_is_copied(is_read):
    builder = relax.BlockBuilder()
    types = {"cache": (1, 2, 4, 1, 3), "new": (1, 1, 1, 3), "pages": (1, 2), "lengths": (1,)}
    params = [
        relax.Var(name, relax.TensorType(shape, "int32" if len(shape) < 3 else "float32"))
        for name, shape in types.items()
    ]
    ports = [{"index": i, "name": name} for i, name in enumerate(types)]
    attrs = {IO_ATTR: {"inputs": ports, "outputs": [{"index": 0}, {"index": 1}]}}
    with builder.function("main", params, attrs=attrs):
        appended = builder.emit(kv_append(*params, page_size=4))
        builder.emit_func_output([appended, params[0] if is_read else appended])
    donated = DonateInputs(["cache"])(builder.get())
    assert ("in_place" in donated.script()) != is_read


def test_a_name_that_no_input_has_is_refused():
    mod = td.load_model(MODEL).mod
    dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 2}))
    with pytest.raises(UsageError, match=r'DIST0152.*no input is called "kache"'):
        DonateInputs(["kache"])(dist)

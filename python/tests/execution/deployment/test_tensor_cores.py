# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Products of 16-bit floats for GPUs: on tensor cores, summed in float32, without transposes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_distir as td
from tests.execution.deployment.kernel_counts import KernelCounts, count_kernels
from tvm_distir.execution.runtime.program.compilation import compile_module
from tvm_distir.execution.runtime.program.permuted_products import read_permuted
from tvm_distir.execution.runtime.program.targets import as_target, host_target
from tvm_distir.support import EngineError

needs_cuda_codegen = pytest.mark.skipif(
    tvm_ffi.get_global_func("target.build.cuda", allow_missing=True) is None,
    reason="this build of apache-tvm generates no code for CUDA",
)


def linear(dtype: str, rows: int, width: int = 192) -> Any:
    """Return ``relu(x @ w.T)``, as a linear layer of PyTorch stores its weight."""
    x, w = (
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape in (("x", (rows, width)), ("w", (128, width)))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, builder.emit(relax.op.permute_dims(w))))
            out = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(out)
    return builder.get()


def cuda_source(mod: Any, arch: str = "sm_90") -> str:
    with as_target(f"cuda:{arch}"):
        pending = [compile_module(mod).mod]
    while pending[0].kind != "cuda":
        pending = [*pending[1:], *pending[0].imports]
    return str(pending[0].inspect_source())


@needs_cuda_codegen
@pytest.mark.parametrize(
    ("dtype", "named"), [("float16", "half"), ("bfloat16", "nv_bfloat16"), ("float32", "")]
)
def test_products_run_on_tensor_cores(dtype: str, named: str) -> None:
    source = cuda_source(linear(dtype, 256))
    fragments = set(re.findall(r"wmma::fragment<[\w:]*(\w+), 16, 16, 16, (\w+)", source))
    kernels = re.findall(r"__global__ void.*?(\w+)_kernel\(.*\{", source)
    assert len(kernels) == 1  # the transpose is a part of the product, and so is the activation
    assert "transpose" not in kernels[0]
    accumulators = {kind for _, kind in fragments if kind == "float"}
    assert {kind for _, kind in fragments} == ({named, "float"} if named else set())
    assert bool(accumulators) == bool(named)


SIZES = "size=tiny,layers=1,hidden=128,heads=2,seq=64,batch=2,dtype=bfloat16"


def counts_of(mod: Any, library: str) -> KernelCounts:
    dist = td.distribute(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 2}))
    return count_kernels(td.compile(dist, target="cuda:sm_90", dispatch=library))


@needs_cuda_codegen
@pytest.mark.parametrize("library", ["torch", "tvm"])
def test_counts_of_a_layer(library: str) -> None:
    """The claims of the table in docs/deployment.md."""
    counts = counts_of(td.load_model(f"zoo:llama?{SIZES},kv_heads=1").mod, library)
    in_library = library == "torch"
    assert (counts.library > 0, counts.tensor_cores > 0) == (in_library, not in_library)
    assert (counts.other_products, counts.transposes, counts.host) == (0, 0, frozenset())
    assert counts.accumulators == (frozenset() if in_library else {"float"})
    assert (counts.attention, counts.softmax) == ((1, 0) if in_library else (0, 1))


@needs_cuda_codegen
def test_counts_of_a_training_step() -> None:
    mod = td.train_step(
        td.load_model(f"zoo:gpt?{SIZES},attention=flash,fused_qkv=1").mod, optimizer="adamw"
    )
    counts = counts_of(mod, "torch")
    assert (counts.tensor_cores, counts.other_products, counts.host) == (0, 0, frozenset())
    assert counts.transposes == 0
    assert counts.attention == 2  # one call in either direction


@needs_cuda_codegen
def test_cuda_graphs_are_refused() -> None:
    graphs = tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True})
    with graphs, pytest.raises(EngineError, match=r"DIST0606 .*CUDA graph"):
        cuda_source(linear("bfloat16", 256))


@needs_cuda_codegen
@pytest.mark.parametrize(("rows", "arch"), [(1, "sm_90"), (256, "sm_75")])
def test_other_products_do_not(rows: int, arch: str) -> None:
    """A row would fill 1 of 128 rows of a tile; bfloat16 needs a device of 2020."""
    assert "wmma::mma_sync" not in cuda_source(linear("bfloat16", rows), arch)


@pytest.mark.parametrize(
    ("first", "second", "axes", "text"),
    [
        ((2, 3, 4), (5, 4), ([0, 1, 2], [1, 0]), None),
        ((4, 3), (4, 5), ([1, 0], [0, 1]), None),
        ((3, 2, 4), (5, 4), ([1, 0, 2], [0, 1]), "bsk,nk->bsn"),
        ((1, 4, 3), (2, 4, 5), ([0, 2, 1], [0, 1, 2]), None),
    ],
)
def test_permuted_products(
    first: Any, second: Any, axes: tuple[list[int], list[int]], text: str | None
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-2, 3, shape).astype("float32") for shape in (first, second)]
    shapes = [relax.TensorType(x.shape, "float32") for x in arrays]
    params = [relax.Var(name, ty) for name, ty in zip("ab", shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            a, b = (builder.emit(relax.op.permute_dims(p, o)) for p, o in zip(params, axes))
            product = relax.op.einsum([a, b], text) if text else relax.op.matmul(a, b)
            out = builder.emit_output(product)
        builder.emit_func_output(out)
    changed = read_permuted(builder.get())
    kept = "permute_dims" in changed.script()
    assert kept == (first[0] == 1)  # a batch of one that is repeated
    machine = relax.VirtualMachine(tvm.compile(changed, host_target()), tvm.cpu())
    got = machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    a, b = (x.transpose(o) for x, o in zip(arrays, axes))
    assert np.array_equal(got, np.einsum(text, a, b) if text else a @ b)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Inputs that a program only reads are not copied, and no array of the caller is overwritten."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.script import tirx as T

import tvm_distir as td
from tests.execution.runtime.level5_modules import Level5
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.execution.runtime.program.lowered import lowered_program

ROWS, COLUMNS = 32, 16
SEEN = []

pytestmark = pytest.mark.quick


@tvm_ffi.register_global_func("test.shared_inputs.note", override=True)
def note(x, out):
    """Note the address of an operand, which is the result."""
    SEEN.append(x.data_ptr())
    out.copyfrom(x)


@T.prim_func(private=True, s_tir=True)
def doubled(x: T.Buffer((ROWS // 2, COLUMNS), "float32")):
    for i, j in T.grid(ROWS // 2, COLUMNS):
        with T.sblock("x"):
            vi, vj = T.axis.remap("SS", [i, j])
            x[vi, vj] = x[vi, vj] + x[vi, vj]


def program(body, dtype="float32"):
    """Return ``main(x) -> body(builder, x)`` on two devices that share the rows."""
    build = Level5(td.device_mesh({"a": 2}))
    port = (ROWS, COLUMNS), dtype, "S[0]"
    build.entry([("x", *port)], [("y", *port)], body)
    return build.get()


def noting(dtype="float32"):
    def body(bb, x):
        return bb.emit(relax.op.call_dps_packed("test.shared_inputs.note", [x], out_ty=x.ty))

    return program(body, dtype)


def aligned(dtype="float32"):
    """Return an array whose shards are aligned as kernels take them."""
    memory = np.zeros(ROWS * COLUMNS * 8 + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :]
    array = memory[: ROWS * COLUMNS * np_dtype(dtype).itemsize].view(np_dtype(dtype))
    array[...] = np.arange(ROWS * COLUMNS) % 2
    return array.reshape(ROWS, COLUMNS)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("writeable", [True, False])
def test_aligned_arrays_are_shared_with_all_ranks(dtype, writeable):
    x = aligned(dtype)
    x.flags.writeable = writeable
    SEEN.clear()
    (y,) = td.run(noting(dtype), [x])
    assert sorted(SEEN) == [x.ctypes.data, x[ROWS // 2 :].ctypes.data]
    assert y.dtype == x.dtype and np.array_equal(y.view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("change", [np.flip, np.asfortranarray, lambda x: x.astype("float32")])
def test_arrays_in_another_order_are_copied(change):
    x = change(aligned())
    (y,) = td.run(noting(), [x])
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("engine", ["threads", "virtual"])
def test_a_kernel_in_place_gets_a_copy(engine):
    def body(bb, x):
        gv = bb.add_func(doubled, "doubled")
        return bb.emit(relax.op.call_tir_inplace(gv, [x], [0], [x.ty]))

    mod, x = program(body), aligned()
    before = x.copy()
    assert lowered_program(mod).overwritten == {0}
    (y,) = td.run(mod, [x], engine=engine)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(y, 2 * before)


@pytest.mark.parametrize("engine", ["threads", "virtual"])
def test_a_result_that_is_the_input_has_memory_of_its_own(engine):
    x = aligned()
    (y,) = td.run(program(lambda bb, x: x), [x], engine=engine, outputs="sharded")
    assert not any(np.shares_memory(part, x) for part in y.parts.values())
    np.testing.assert_array_equal(y.whole(), x)


def test_tensors_of_pytorch_are_shared_of_every_type():
    torch = pytest.importorskip("torch", reason="extra torch")
    x = torch.ones(ROWS, COLUMNS, dtype=torch.bfloat16).requires_grad_()
    SEEN.clear()
    (y,) = td.run(noting("bfloat16"), [x])
    assert min(SEEN) == x.data_ptr()
    assert y.dtype == np_dtype("bfloat16") and (y.astype("float32") == 1).all()


def test_a_module_is_lowered_once_until_a_function_of_it_changes():
    mod = program(lambda bb, x: bb.emit(relax.op.add(x, x)))
    other = program(lambda bb, x: bb.emit(relax.op.multiply(x, x)))
    first = lowered_program(mod)
    assert lowered_program(mod) is first
    x = 3 * aligned()
    assert np.array_equal(td.run(mod, [x])[0], 2 * x)
    mod.update_func(mod.get_global_var("main"), other["main"])
    assert lowered_program(mod) is not first
    assert np.array_equal(td.run(mod, [x])[0], x * x)

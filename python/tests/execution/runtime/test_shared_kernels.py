# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs that share kernels: what is built, and that each still runs its own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import tirx as T

from tvm_distir.execution.runtime.program.compilation import compile_module
from tvm_distir.execution.runtime.program.machines import make_machine
from tvm_distir.execution.runtime.program.shared_kernels import SharedKernels, calls_functions

Build = Callable[..., Any]


def program(rows: int, *ops: Build) -> tvm.IRModule:
    """``relax.Function main(x)``: the ops one after the other."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for op in ops:
                value = builder.emit(op(value))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def plus(number: float) -> Build:
    return lambda x: relax.op.add(x, relax.const(number, "float32"))


def flip(x: relax.Expr) -> relax.Expr:
    return relax.op.flip(x, 0)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of kernels of the builds of the test."""
    counts: list[int] = []
    real = tvm.tirx.build

    def build(mod: Any, *args: Any, **options: Any) -> Any:
        counts.append(len(mod.functions))
        return real(mod, *args, **options)

    monkeypatch.setattr(tvm.tirx, "build", build)
    return counts


def run_shared(kernels: SharedKernels, mod: tvm.IRModule, rows: int) -> np.ndarray:
    machine = make_machine(compile_module(mod, "here", kernels).mod)
    x = np.arange(4 * rows, dtype="float32").reshape(rows, 4)
    return machine["main"](tvm.runtime.tensor(x)).numpy() - x


def test_kernels_of_earlier_programs_are_not_built_again(built: list[int]) -> None:
    kernels = SharedKernels()
    softmax, log_softmax = relax.op.nn.softmax, relax.op.nn.log_softmax  # each is its own kernel
    run_shared(kernels, program(2, softmax, flip), 2)
    run_shared(kernels, program(2, flip, log_softmax, softmax), 2)
    run_shared(kernels, program(2, softmax, log_softmax), 2)  # of both libraries, and no other
    assert built == [2, 1]


def test_kernels_under_a_name_that_differ_are_kept_apart() -> None:
    """Each program calls a kernel ``add``, ``add1``, ... of another constant or another shape."""
    kernels = SharedKernels()
    for numbers in ((1.0, 2.0), (2.0, 1.0, 4.0), (4.0, 8.0), (1.0, 8.0)):
        for rows in (2, 3):
            got = run_shared(kernels, program(rows, *map(plus, numbers)), rows)
            assert np.array_equal(got, np.full((rows, 4), sum(numbers)))


def test_kernels_of_another_target_are_not_taken(built: list[int]) -> None:
    kernels = SharedKernels()
    for level in (0, 1, 0):
        with tvm.target.Target({"kind": "llvm", "opt-level": level}):
            run_shared(kernels, program(2, relax.op.exp), 2)
    assert built == [1, 1]


def test_all_are_forgotten_before_they_become_too_many(
    built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_distir.execution.runtime.program.shared_kernels._MOST_KERNELS", 1)
    kernels = SharedKernels()
    for _ in range(2):
        result = run_shared(kernels, program(2, relax.op.nn.softmax, flip), 2)
        assert np.isfinite(result).all()
    assert built == [2, 2]


def test_kernels_that_call_functions_are_told() -> None:
    """They are built with what they call."""

    @I.ir_module
    class Calls:
        @T.prim_func(private=True)
        def twice(x: T.float32) -> T.float32:
            return x + x

        @T.prim_func
        def kernel(x: T.Buffer((2, 4), "float32"), y: T.Buffer((2, 4), "float32")):
            for i, j in T.grid(2, 4):
                y[i, j] = Calls.twice(x[i, j])

    assert [calls_functions(Calls[name]) for name in ("twice", "kernel")] == [False, True]

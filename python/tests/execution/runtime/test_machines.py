# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Virtual machines that threads make at once, of a library that calls packed functions."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tvm_distir.execution.runtime.dispatch import kernel_registration, packed_names
from tvm_distir.execution.runtime.program import machines

_RUNS = itertools.count()
THREADS = 8


def _library(name: str) -> Any:
    """Compile ``y = name(x)``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        y = builder.emit(relax.op.call_dps_packed(name, [x], out_ty=x.ty))
        builder.emit_func_output(y)
    return relax.build(builder.get(), "llvm").mod


def _copy(x: Any, out: Any) -> None:
    np.from_dlpack(out)[:] = np.from_dlpack(x)


def _register(name: str) -> None:
    tvm_ffi.register_global_func(name, _copy, override=True)


def _run(machine: Any) -> list[float]:
    return machine["main"](tvm.runtime.tensor(np.arange(4, dtype="float32"))).numpy().tolist()


def test_a_function_that_another_thread_registers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is registered between a machine's failure and the look at what is registered."""
    name = f"tests.raced.{next(_RUNS)}"
    make, failures = machines.VirtualMachine, []

    def raced(library: Any, device: Any) -> Any:
        try:
            return make(library, device)
        except RuntimeError as err:
            failures.append(err)
            _register(name)
            raise

    monkeypatch.setattr(machines, "VirtualMachine", raced)
    assert _run(machines.make_machine(_library(name))) == [0, 1, 2, 3]
    assert len(failures) == 1


def test_threads_make_machines_while_one_registers_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every thread fails first; none goes on before all the functions are registered."""
    name = f"{packed_names.PREFIXES['torch']}tests_{next(_RUNS)}"
    make, all_failed = machines.VirtualMachine, threading.Barrier(THREADS)
    calls: list[str] = []

    def slow(library: Any, device: Any) -> Any:
        try:
            return make(library, device)
        except RuntimeError:
            all_failed.wait(30)
            raise

    def registering(library: str) -> None:
        if not calls:
            calls.append(name)
            threading.Event().wait(0.05)
            _register(name)

    monkeypatch.setattr(machines, "VirtualMachine", slow)
    monkeypatch.setattr(kernel_registration, "_register", registering)
    monkeypatch.setattr(packed_names.importlib.util, "find_spec", lambda name: object())
    library = _library(name)
    with ThreadPoolExecutor(THREADS) as pool:
        made = list(pool.map(lambda _: machines.make_machine(library), range(THREADS)))
    assert [_run(machine) for machine in made] == [[0, 1, 2, 3]] * THREADS

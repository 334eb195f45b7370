# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs that several threads of a process run at once, each with inputs of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.execution.runtime.test_runtime_mpi import has_mpi
from tests.nightly import nightly_but
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.runtime.program.compilation import compile_module

ENGINES = ["virtual", "threads", "mpi", "xla"]
#: Threads, and calls of each; a call of mpi starts a job of its own.
LOADS = {"virtual": (4, 80), "threads": (4, 16), "mpi": (2, 1), "xla": (4, 6)}


def chain(rows: int, layers: int = 12) -> Any:
    """``relax.Function main(x, w)``: w is the identity, so the result is x where x is positive."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 64), "float32"))
    w = relax.Var("w", relax.TensorType((64, 64), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            value = x
            for _ in range(layers):
                value = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(value, w))))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def distributed(rows: int) -> Any:
    plan = {"schema_version": 1, "mesh": {"tp": 2}, "rules": [{"param": "x", "placement": "S[0]"}]}
    return td.distribute(chain(rows), plan)


def check_from_threads(
    run: Callable[[list[Any]], list[Any]], rows: int, load: tuple[int, int]
) -> None:
    """Every call from a pool gives the result of its own input."""
    threads, calls = load

    def work(number: int) -> list[bool]:
        x = np.full((rows, 64), number + 1, "float32")
        return [np.array_equal(run([x, np.eye(64, dtype="float32")])[0], x) for _ in range(calls)]

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(work, range(threads))) == [[True] * calls] * threads


def need(engine: str) -> None:
    if engine == "mpi" and not has_mpi():
        pytest.skip("no MPI: the extra mpi is not installed")
    if engine == "xla":
        pytest.importorskip("jax", reason="the engine xla needs the extra jax")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module(engine: str) -> None:
    """Also the compilation, at the first call, happens in several threads."""
    need(engine)
    rows = 32 + 2 * ENGINES.index(engine)
    mod = distributed(rows)
    check_from_threads(lambda x: td.run(mod, x, engine=engine), rows, LOADS[engine])


@pytest.mark.parametrize("engine", nightly_but(["virtual", "threads", "mpi"], {0, 1}))
def test_a_loaded_deployment(engine: str, tmp_path) -> None:
    need(engine)
    td.deploy(distributed(32), tmp_path)
    loaded = td.load(tmp_path)
    check_from_threads(lambda x: loaded.run(x, engine=engine), 32, LOADS[engine])


def test_the_reference() -> None:
    reference = Reference(chain(48))
    check_from_threads(reference.run, 48, (4, 48))


def test_different_modules_are_compiled_at_once() -> None:
    """Softmax legalises to tagged TE, whose scope TVM keeps for the whole process."""

    def softmax(columns: int) -> Any:
        x = relax.Var("x", relax.TensorType((2, columns), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            for _ in range(8):
                out = builder.emit(relax.op.nn.softmax(x))
            builder.emit_func_output(out)
        return builder.get()

    modules = [softmax(columns) for columns in range(3, 19)]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(compile_module, modules))

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps in stages on engines of processes: results, and a rank that ends between two units."""

from __future__ import annotations

import functools
import re
import time
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from tvm import ir, relax

import tvm_distir as td
from tests.execution.runtime.broken_unit import PREFIX
from tests.execution.runtime.test_runtime_mpi import needs_mpi
from tests.nightly import nightly_but
from tests.transforms.training.pipeline_models import normed_tower, tower
from tvm_distir.core.rewriting.writer import with_body
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import EngineError
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule, SerializePipeline

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch: the extra torch")
MPI = pytest.param("mpi", marks=needs_mpi)
TORCH = pytest.param("torch", marks=needs_torch)
RAISES = r"DIST0612 main_mesh1.*ValueError: boom"
WAITED = r"DIST0613.*waited"
KILLED = r"DIST0615.*worker 1: .*killed by SIGKILL"
EXITS = r"DIST0615.*worker 1: .*ended with exit code 3"


@functools.cache
def _healthy() -> tuple[ir.IRModule, list[Any], list[Any]]:
    """The programs of three ranks, inputs, and what they give."""
    schedule = {"kind": "1f1b", "stages": 3, "micro_batches": 4}
    step = td.train_step(tower(6, 2), loss="mse", schedule=schedule)
    plan = make_plan(step, "pipeline:micro_batches=4", {"pp": 3})
    programs = ExpandSchedule()(td.distribute(step, plan))
    values = draw_inputs(SerializePipeline()(step))
    return programs, values, list(td.run(programs, values, engine="threads"))


def _broken(programs: ir.IRModule, entry: str, label: str) -> ir.IRModule:
    """The programs, one of which hands what arrives third to a function that ends it."""
    fn = programs[entry]
    bindings, arrived = [], 0
    for binding in [b for block in fn.body.blocks for b in block.bindings]:
        bindings.append(binding)
        if "R.dist.recv" in str(binding.value):
            arrived += 1
            if arrived == 3:
                call = relax.op.call_dps_packed(
                    PREFIX + label, [binding.var], out_ty=binding.var.ty
                )
                call = relax.BlockBuilder().normalize(call)
                bindings.append(relax.VarBinding(relax.Var("acted", binding.var.ty), call))
    functions = dict(programs.functions.items())
    block = relax.BindingBlock(bindings)
    new = with_body(fn, list(fn.params), [block], fn.body.body, bool(fn.is_pure))
    functions[programs.get_global_var(entry)] = new
    return ir.IRModule(functions, attrs=programs.attrs, global_infos=programs.global_infos)


def _engine(name: str, timeout_s: float) -> Any:
    engine: Any = td.execution.engine(name)
    engine.timeout_s = timeout_s
    if hasattr(engine, "preload"):
        engine.preload = ("tests.execution.runtime.broken_unit",)
    return engine


@pytest.mark.parametrize(
    ("engine", "what", "says"),
    [
        ("threads", "raise", RAISES),
        ("threads", "sleep", WAITED),
        pytest.param("torch", "sleep", WAITED, marks=needs_torch),
        pytest.param("torch", "exits", EXITS, marks=needs_torch),
        pytest.param("mpi", "raise", RAISES, marks=[needs_mpi, pytest.mark.nightly]),
        pytest.param("mpi", "killed", KILLED, marks=needs_mpi),
    ],
)
def test_a_rank_that_ends_between_two_units(engine: str, what: str, says: str) -> None:
    """As the table of faults says; the next run has the results of the first."""
    programs, values, expected = _healthy()
    broken = _broken(programs, "main_mesh1", what)
    start_s = time.monotonic()
    with pytest.raises(EngineError) as result:
        td.run(broken, values, engine=_engine(engine, 1.0 if what == "sleep" else 60.0))
    assert re.search(says, str(result.value), re.DOTALL), str(result.value)
    assert time.monotonic() - start_s < 60.0
    for left, other in zip(td.run(programs, values, engine=engine), expected, strict=True):
        np.testing.assert_array_equal(left, other)


@pytest.mark.parametrize("engine", [TORCH, MPI])
@pytest.mark.parametrize("model", nightly_but(["dropouts", "norms"], {0}))
def test_masks_and_statistics_between_processes(model: str, engine: str) -> None:
    """Streams of random numbers and running statistics are those of one device."""
    created = tower(4, 4, rate=0.25) if model == "dropouts" else normed_tower(4, 8)
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2}
    step = td.train_step(created, loss="mse", schedule=schedule)
    plan = make_plan(step, "pipeline:micro_batches=2+data_parallel", {"pp": 2, "dp": 2})
    assert td.verify(step, plan, engine=engine).equal

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A rank of a pipeline that fails in the middle of its units: every engine ends, and says where."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.errors import EngineError
from tvm_distir.ir.rewrite import with_body
from tvm_distir.strategy import make_plan
from tvm_distir.transform import ExpandSchedule, RunInTurn
from tvm_distir.verification import draw_inputs

sys.path.insert(0, str(Path(__file__).parent.parent / "transform"))
from pipeline_models import tower

ACT = "tvm_distir.test_runtime_stages.act"
ASKED: list[str] = []
"""What the next call of the function is to do instead of copying."""


def _act(x: Any, out: Any) -> None:
    """Copy, or fail as was asked for."""
    what = ASKED.pop() if ASKED else ""
    if what == "raise":
        raise ValueError("boom")
    if what == "sleep":
        time.sleep(6.0)
    out.copyfrom(x.numpy())


tvm_ffi.register_global_func(ACT, _act, override=True)


def _broken(programs: ir.IRModule, entry: str) -> ir.IRModule:
    """The programs, one of which hands what arrives third to a function of this file."""
    fn = programs[entry]
    bindings, arrived = [], 0
    for binding in [b for block in fn.body.blocks for b in block.bindings]:
        bindings.append(binding)
        if "R.dist.recv" in str(binding.value):
            arrived += 1
            if arrived == 3:
                call = relax.op.call_dps_packed(ACT, [binding.var], out_ty=binding.var.ty)
                call = relax.BlockBuilder().normalize(call)
                bindings.append(relax.VarBinding(relax.Var("acted", binding.var.ty), call))
    functions = dict(programs.functions.items())
    block = relax.BindingBlock(bindings)
    new = with_body(fn, list(fn.params), [block], fn.body.body, bool(fn.is_pure))
    functions[programs.get_global_var(entry)] = new
    return ir.IRModule(functions, attrs=programs.attrs, global_infos=programs.global_infos)


@pytest.mark.parametrize(
    ("what", "says"),
    [("raise", r"DIST0612 main_mesh1.*ValueError: boom"), ("sleep", r"DIST0613.*waited")],
)
def test_a_rank_that_fails_between_two_units(what: str, says: str) -> None:
    schedule = {"kind": "1f1b", "stages": 3, "micro_batches": 4}
    step = td.train_step(tower(6, 2), loss="mse", schedule=schedule)
    plan = make_plan(step, "pipeline:micro_batches=4", {"pp": 3})
    programs = _broken(ExpandSchedule()(td.distribute(step, plan)), "main_mesh1")
    values = draw_inputs(RunInTurn()(step))
    engine: Any = td.runtime.engine("threads")
    wanted = td.run(programs, values, engine=engine)
    ASKED.append(what)
    engine.timeout_s = 1.0 if what == "sleep" else 60.0
    start_s = time.monotonic()
    with pytest.raises(EngineError) as found:
        td.run(programs, values, engine=engine)
    assert re.search(says, str(found.value), re.DOTALL)
    assert time.monotonic() - start_s < 30.0
    again: Any = td.runtime.engine("threads")
    for one, other in zip(td.run(programs, values, engine=again), wanted, strict=True):
        np.testing.assert_array_equal(one, other)

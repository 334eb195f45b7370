# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Gathered values are kept in parts between the parts of a training step, and gathered again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir

import tvm_distir as td
from tests.core.passes import lower_harness as h
from tests.nightly import nightly_but
from tests.transforms.optimize_harness import HEAD, called, drawn, dtensor, gather
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.types import flat_types
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.plan.plan import Plan
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.support.errors.tree import MeshError
from tvm_distir.transforms.optimize.regather import RegatherActivations
from tvm_distir.transforms.training.pipeline.expand_passes import ExpandSchedule

GPT = {
    "size": "tiny", "layers": 2, "hidden": 16, "heads": 4, "vocab": 32, "seq": 16, "batch": 4,
    "positions": 16,
}  # fmt: skip
WHOLE, PART, NUMBER = dtensor("R, R"), dtensor("R, S[0]"), dtensor("R, R", "()")


def level4(functions: str, lines: list[str], result: str = "(loss, w_grad)") -> ir.IRModule:
    """A step of ``x``, cut along b, and ``w``: its loss is a number, the other is w's gradient."""
    body = "\n".join(f"            {line}" for line in lines)
    return tvm.script.from_source(
        HEAD.format(
            functions=functions,
            params=f"x: {PART}, w: {WHOLE}",
            body=f"        with R.dataflow():\n{body}\n            R.output(loss, w_grad)",
            result=result,
        )
    )


def function(name: str, params: dict[str, str], lines: list[str], result: str) -> str:
    inputs = ", ".join(f"{n}: {ty}" for n, ty in params.items())
    body = "\n".join(f"        {line}" for line in lines)
    return f"""
    @R.function(private=True)
    def {name}({inputs}):
        cls = Module
{body}
        return {result}
"""


FORWARD = function(
    "f", {"x": PART, "w": WHOLE}, [f"g = {gather('x', 1, 0)}", "y = R.matmul(g, w)"], "(y, (g, x))"
)
BACKWARD = function(
    "b",
    {"saved": f"R.Tuple({WHOLE}, {PART})", "grad": WHOLE},
    ["g = saved[0]", "t = R.permute_dims(g)", "w_grad = R.matmul(t, grad)"],
    "w_grad",
)
OUTER = function(
    "outer",
    {"x": PART, "w": WHOLE},
    ["both = cls.f(x, w)", "y = both[0]", "saved = both[1]", "z = R.add(y, y)"],
    "(z, (w, saved))",
)
STEP = ["y = both[0]", "loss = R.sum(y)", "grad = R.ones_like(y)"]


def again(mod: ir.IRModule) -> ir.IRModule:
    """Run the pass along b; hold what passes promise, and that both modules give the same bits."""
    before = tvm_ffi.structural_hash(mod)
    new = RegatherActivations(["b"])(mod)
    assert tvm_ffi.structural_hash(mod) == before
    h.check_module(new)
    check_level(new, 4)
    matches = [h.run_virtual(LowerDistIR()(each), drawn(["x", "w"])) for each in (mod, new)]
    assert all(np.array_equal(a, b) for a, b in zip(*matches, strict=True))
    return new


def types(mod: ir.IRModule, name: str) -> list[str]:
    """Placements of what a function returns."""
    return placements(mod[name].ret_ty)


def placements(ty: Any) -> list[str]:
    return [str(leaf.placement).strip('"') for leaf in flat_types(ty)]


def test_what_a_function_keeps_is_handed_on_as_it_was() -> None:
    lines = ["both = cls.f(x, w)", *STEP, "saved = both[1]", "w_grad = cls.b(saved, grad)"]
    new = again(level4(FORWARD + BACKWARD, lines))
    assert types(new, "f") == ["R, R", "R, S[0]", "R, S[0]"]
    assert placements(new["b"].params[0].ty) == ["R, S[0]", "R, S[0]"]
    assert len(called(new)) == 2


def test_through_functions_of_functions() -> None:
    lines = ["both = cls.outer(x, w)", *STEP, "kept = both[1]", "saved = kept[1]"]
    lines.append("w_grad = cls.b(saved, grad)")
    new = again(level4(FORWARD + OUTER + BACKWARD, lines))
    assert types(new, "outer") == ["R, R", "R, R", "R, S[0]", "R, S[0]"]
    assert len(called(new)) == 2


def test_a_step_without_functions_gathers_behind_its_loss() -> None:
    lines = [f"g = {gather('x', 1, 0)}", "y = R.matmul(g, w)", "loss = R.sum(y)"]
    lines += ["grad = R.ones_like(y)", "t = R.permute_dims(g)", "w_grad = R.matmul(t, grad)"]
    new = again(level4("", lines))
    values = {str(b.var.name): b.value for b in new["main"].body.blocks[0].bindings}
    assert str(values["t"].args[0].name) == "g_again"
    assert str(values["g_again"].args[0].name) == "x"
    assert str(values["y"].args[0].name) == "g"


def test_what_the_forward_part_computes_with_stays_gathered() -> None:
    """And so does what comes from elsewhere too, and what is gathered along another axis."""
    lines = ["both = cls.f(x, w)", "y = both[0]", "saved = both[1]", "again = saved[0]"]
    lines += ["more = R.add(y, again)", "loss = R.sum(more)", "grad = R.ones_like(y)"]
    mod = level4(FORWARD + BACKWARD, [*lines, "w_grad = cls.b(saved, grad)"])
    assert RegatherActivations(["b"])(mod).same_as(mod)
    lines = ["both = cls.f(x, w)", *STEP, "saved = both[1]", "first = cls.b(saved, grad)"]
    lines += ["twice = R.add(w, w)", "own = (twice, x)", "second = cls.b(own, grad)"]
    lines.append("w_grad = R.add(first, second)")
    mod = level4(FORWARD + BACKWARD, lines)
    assert RegatherActivations(["b"])(mod).same_as(mod)
    lines = ["both = cls.f(x, w)", *STEP, "saved = both[1]", "w_grad = cls.b(saved, grad)"]
    mod = level4(FORWARD + BACKWARD, lines)
    assert RegatherActivations(["a"])(mod).same_as(mod)
    with pytest.raises(MeshError, match=r"DIST0206.*RegatherActivations"):
        RegatherActivations(["c"])(mod)


def step_and_plan(policy: str, text: str, **options: Any) -> tuple[ir.IRModule, Plan]:
    step = td.train_step(td.zoo.gpt(**{**GPT, **options}), recompute=policy, rate=0.5)
    return step, make_plan(step, text, {"tp": 2})


def executed(program: Any, function: str) -> Iterator[tuple[Any, Any]]:
    for op in program.functions[function].ops:
        if op.callee:
            yield from executed(program, op.callee)
        yield program.functions[function], op


def collectives(step: ir.IRModule, plan: Plan) -> Counter[str]:
    """Collectives of activations of all ranks of a pipeline, by kind."""
    program = td.export(ExpandSchedule()(td.distribute(step, plan)))
    return Counter(
        op.collective
        for entry in program.entries
        for fn, op in executed(program, entry.function)
        if op.kind == "collective" and len(fn.values[op.outputs[0]].shape) == 3
    )


def more_gathers(step: ir.IRModule, plan: Plan) -> int:
    """How many all-gathers more a plan has than without gathering again; nothing else may."""
    result = collectives(step, plan)
    result.subtract(collectives(step, dataclasses.replace(plan, regather=())))
    assert set(result.elements()) <= {"all_gather"}
    return result["all_gather"]


@pytest.mark.parametrize(
    ("policy", "text", "engine", "options", "again"),
    nightly_but(
        [
            ("none", "megatron:sequence=1", "virtual", {}, 2),
            ("core", "megatron:sequence=1", "threads", {"dropout": 0.5}, 2),
            ("checkpoint", "megatron:sequence=1", "virtual", {}, 2),
            ("megatron", "megatron:sequence=1", "threads", {"dropout": 0.5}, 2),
            ("full", "megatron:sequence=1", "virtual", {}, 0),  # recomputed, with its gather
            ("none", "megatron+sequence", "threads", {"seq": 15}, 2),
            ("none", "megatron:sequence=1", "virtual", {"nested": 0}, 2),
        ],
        {1, 2, 4, 5},
    ),
)
def test_the_same_bits(
    policy: str, text: str, engine: str, options: dict[str, Any], again: int
) -> None:
    """Korthikanti et al. 2022, section 4.2.2: two more per layer, and here one for the head."""
    step, plan = step_and_plan(policy, text, **options)
    remaining = dataclasses.replace(plan, regather=())
    assert more_gathers(step, plan) == GPT["layers"] * again + 1
    values = draw_inputs(step, seed=0)
    matches = [
        td.run(td.distribute(step, each), values, engine=engine) for each in (plan, remaining)
    ]
    assert all(np.array_equal(a, b) for a, b in zip(*matches, strict=True))
    assert td.verify(step, plan, engine=engine).equal


@pytest.mark.parametrize(
    ("kind", "chunks", "policy", "engine", "again"),
    nightly_but(
        [
            ("1f1b", 1, "none", "threads", 2),
            ("1f1b", 1, "checkpoint", "virtual", 2),
            ("interleaved", 2, "core", "virtual", 2),
            ("interleaved", 2, "full", "virtual", 0),
            ("zero_bubble", 1, "none", "virtual", 2),
        ],
        {2, 4},
    ),
)
def test_in_stages(kind: str, chunks: int, policy: str, engine: str, again: int) -> None:
    """Between the units of a schedule parts are kept; each micro-batch gathers its own again."""
    micros, layers = 2, 2 * chunks
    schedule = {"kind": kind, "stages": 2, "micro_batches": micros}
    schedule |= {"chunks": chunks} if chunks > 1 else {}
    model = td.zoo.gpt(**{**GPT, "layers": layers})
    step = td.train_step(model, recompute=policy, schedule=schedule)
    words = f"pipeline:micro_batches={micros},schedule={kind},chunks={chunks}"
    plan = make_plan(step, f"{words}+megatron:sequence=1", {"pp": 2, "tp": 2})
    assert more_gathers(step, plan) == (layers * again + 1) * micros
    assert td.verify(step, plan, engine=engine).equal


def test_a_plan_says_so() -> None:
    _, plan = step_and_plan("none", "megatron:sequence=1")
    assert plan.regather == ("tp",)
    assert plan.to_dict()["regather"] == ["tp"]
    assert Plan.from_dict(plan.to_dict()) == plan
    _, without = step_and_plan("none", "megatron")
    assert without.regather == ()
    with pytest.raises(MeshError, match=r'DIST0206.*no mesh has an axis "tq"'):
        dataclasses.replace(plan, regather=("tq",))

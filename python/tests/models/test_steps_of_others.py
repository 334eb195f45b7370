# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What is taken for a step of training, and what of it for a state; by how values are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

import tvm_distir as td
from tvm_distir.execution.runtime.engines.reference import Reference
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.models.common.foreign_steps import noted_step
from tvm_distir.support.errors.tree import ModelError, PlanError

DATA = Path(__file__).parent / "stablehlo_data"
PARAMS = {"x": (8, 4), "y": (8, 4), "w": (4, 4), "s": (4, 4), "r": (4, 4)}


def number(value: float):
    return relax.const(value, "float32")


def module(write, data: int | None = 2):
    """A function of two data and three matrices; ``write`` gives its results."""
    params = {n: relax.Var(n, relax.TensorType(s, "float32")) for n, s in PARAMS.items()}
    builder = relax.BlockBuilder()
    attrs = {"dist.param_names": list(PARAMS), "num_input": len(PARAMS) if data is None else data}
    with builder.function("main", list(params.values()), attrs=attrs):
        with builder.dataflow():
            results = [builder.emit(v) for v in write(builder.emit, **params)]
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    return builder.get()


def backward(emit, x, y, w):
    """A loss, the gradient of its weight."""
    error = emit(op.subtract(emit(op.matmul(x, w)), y))
    loss = emit(op.sum(emit(op.multiply(error, error))))
    return loss, emit(op.matmul(emit(op.permute_dims(x)), error))


def notes(mod):
    attrs = noted_step(mod)["main"].attrs
    result = attrs.get("dist.training")
    return None if result is None else {k: [*v] for k, v in result["states"].items()}


def moved(w, by):
    return op.subtract(w, op.multiply(number(0.1), by))


def momentum(emit, x, y, w, s, r):
    """Decay is added to the gradient: the momentum too is made of the weight."""
    loss, g = backward(emit, x, y, w)
    g = emit(op.add(g, op.multiply(number(0.01), w)))
    s = emit(op.add(op.multiply(number(0.9), s), g))
    return moved(w, s), s, loss


def averaged(emit, x, y, w, s, r):
    """A momentum, and an average of the weights; clipped by the norm of the gradient."""
    loss, g = backward(emit, x, y, w)
    g = emit(op.divide(g, op.maximum(op.sqrt(op.sum(op.multiply(g, g))), number(1.0))))
    s = emit(op.add(op.multiply(number(0.9), s), g))
    w = emit(moved(w, s))
    return loss, w, s, op.add(op.multiply(number(0.99), r), op.multiply(number(0.01), w))


def masked(emit, x, y, w, s, r):
    """What comes in and never changes is no state."""
    loss, g = backward(emit, x, y, w)
    return loss, op.multiply(moved(w, g), s)


def accumulated(emit, x, y, w, s, r):
    """Sums of squares, and steps that are skipped where gradients overflow."""
    loss, g = backward(emit, x, y, w)
    fine = emit(op.isfinite(op.sum(g)))
    new = emit(op.add(r, op.multiply(g, g)))
    w_new = emit(moved(w, op.divide(g, op.sqrt(new))))
    return loss, op.where(fine, w_new, w), op.where(fine, new, r)


def gradients_alone(emit, x, y, w, s, r):
    return backward(emit, x, y, w)


def regularized(emit, x, y, w, s, r):
    """The gradient of a loss with decay and two scales: it reads a weight, as itself and not."""
    error = emit(op.subtract(emit(op.matmul(x, emit(op.multiply(w, s)))), y))
    loss = emit(op.sum(emit(op.multiply(error, error))))
    g = emit(op.matmul(emit(op.permute_dims(x)), error))
    decay = op.multiply(w, number(0.02))
    return loss, op.add(op.multiply(g, s), decay), op.multiply(g, w), op.multiply(g, op.rsqrt(w))


def carried(emit, x, y, w, s, r):
    """A cache that is written, beside a number: nothing is trained."""
    out = emit(op.matmul(x, op.add(w, s)))
    return op.sum(out), op.add(s, op.matmul(op.permute_dims(x), y)), out


def residual(emit, x, y, w, s, r):
    """A value that goes through layers is changed as a weight is, but by no target."""
    out = emit(op.add(x, op.tanh(emit(op.matmul(x, w)))))
    lost = emit(op.subtract(out, y))
    return op.sum(emit(op.multiply(lost, lost))), out


STEPS = [(momentum, {"w": ["s"]}), (averaged, {"w": ["s", "r"]}), (masked, {})]
STEPS += [(accumulated, {"w": ["r"]})]


@pytest.mark.parametrize(("write", "states"), STEPS, ids=lambda case: getattr(case, "__name__", ""))
def test_states_are_told_from_what_they_are_made_of(write, states):
    mod = module(write)
    assert notes(mod) == notes(module(write, None)) == states
    step = noted_step(mod)
    assert [*step["main"].attrs["dist.training"]["gradients"]] == ["w"]
    blind = noted_step(module(write, None))["main"]
    updated = [*blind.attrs["dist.training"]["updated"]]
    named = [str(name) for name in blind.attrs["dist.param_names"]]
    assert set(updated) == {"w", *states.get("w", ())}
    assert set(named[int(blind.attrs["num_input"]) :]) == set(updated)
    stages = (1, 2, 3) if states else (2, 3)
    for stage in stages:
        plan = td.planning.make_plan(step, f"zero:stage={stage}", {"dp": 2})
        dist = td.distribute(step, plan)
        assert td.verify(step, plan, dist=dist).equal
        io = dist["main"].attrs["dist.io"]
        cut = {str(i["name"]) for i in io["inputs"] if str(i["placement"]) == "S[0]"}
        others = {"s", "r"} - {*states.get("w", ())}  # weights that are not trained
        assert cut - others == {"x", "y", *states.get("w", ())} | ({"w"} if stage == 3 else set())
    if not states:
        with pytest.raises(PlanError, match="DIST0233"):
            td.planning.make_plan(step, "zero:stage=1", {"dp": 2})


@pytest.mark.parametrize("write", [gradients_alone, regularized, carried, residual])
def test_other_programs_are_no_steps(write):
    for data in (2, None):
        mod = module(write, data)
        assert noted_step(mod).same_as(mod)


def test_a_step_of_jax_draws_what_it_can_take_and_gives_memory_back():
    mod = td.from_stablehlo(DATA / "mlp_adam.mlir", data=["data.0"])
    result = Reference(mod).run(draw_inputs(mod))  # counters and squares are positive
    assert not any(np.isnan(value).any() for value in result)
    with pytest.raises(ModelError, match="DIST0351"):
        td.train_step(mod)
    plan = td.planning.make_plan(mod, "zero:stage=1", {"dp": 2})
    dist = td.distribute(mod, plan)
    assert td.verify(mod, plan, dist=dist).equal
    program = td.export(dist)
    (entry,) = program.entries
    main = program.functions[entry.function]
    roles = [main.values[v].role for v in main.params]
    assert roles.count("state") == 2 * roles.count("weight") + 1  # and a counter
    assert len(entry.alias) == len(roles) - 1  # all but the data

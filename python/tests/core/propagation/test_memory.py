# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Memory as a bound: what a decision keeps, and decisions that fit."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.relax import op as R_

import tvm_distir as td
from tests.core.propagation.modules_made import build, tensor
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.propagation.decide import propagate
from tvm_distir.core.propagation.memory_bound import MemoryMeter
from tvm_distir.execution.verification.verifying import verify
from tvm_distir.hardware.systems.system import System
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.support.errors.tree import InfeasibleError

LAYERS, WIDE, ROWS, RANKS, F32 = 6, 64, 16, 4, 4
WEIGHTS = LAYERS * WIDE * WIDE * F32


def plan_of(rules):
    """A plan on one axis."""
    mesh = {"dp": RANKS}
    return Plan.from_dict({"schema_version": 1, "mesh": mesh, "rules": rules})


X_RULE = {"param": "x", "placement": "S[0]"}
PLAN = plan_of([X_RULE])


def chain(nested):
    """Six matmuls with relu, the rows of x cut: nothing asks for shards of the weights."""
    x = relax.Var("x", tensor(ROWS, WIDE))
    ws = [relax.Var(f"w{i}", tensor(WIDE, WIDE)) for i in range(LAYERS)]

    def layer(emit, a, b):
        return emit(R_.nn.relu(emit(R_.matmul(a, b))))

    def main(emit, gvs):
        out = x
        for w in ws:
            out = emit(gvs["layer"](out, w)) if nested else layer(emit, out, w)
        return out

    a, b = relax.Var("a", tensor(ROWS, WIDE)), relax.Var("b", tensor(WIDE, WIDE))
    private = {"layer": ([a, b], lambda emit, _: layer(emit, a, b))} if nested else {}
    return build([x, *ws], main, private)


def kept(mod, memory_bytes=None):
    """What a device keeps at its worst moment."""
    return MemoryMeter(propagate(AnnotateSharding(PLAN)(mod), memory_bytes=memory_bytes)).kept()


@pytest.mark.parametrize("nested", [False, True])
def test_the_peak_is_that_of_the_liveness_of_the_chain(nested):
    """All weights whole, the rows of x and of two neighbouring results in quarters."""
    rows = ROWS // RANKS * WIDE * F32
    result = kept(chain(nested))
    assert result.param_bytes == WEIGHTS + rows
    # in a private function the argument is the caller's, and lives as long as the call
    assert result.peak_bytes == result.param_bytes + (3 if nested else 2) * rows


@pytest.mark.parametrize("nested", [False, True])
def test_a_bound_shards_what_is_stored(nested):
    """Half of the weights' bytes is enough: they are stored in parts, gathered one by one."""
    mod, bound = chain(nested), WEIGHTS // 2
    assert kept(mod).peak_bytes > bound
    assert kept(mod, bound).peak_bytes <= bound
    annotated = AnnotateSharding(PLAN)(mod)
    level3 = PropagateSharding(memory_bytes=bound)(annotated)
    local = LowerDistIR()(LegalizeRedistribute()(level3))
    assert verify(mod, None, dist=local, exact=True).equal
    result = simulate(td.export(local), System.load("dgx-h100"))
    assert result.peak_memory_bytes <= bound
    text = str(level3)
    assert text.count("R.dist.redistribute(") >= (1 if nested else LAYERS // 2)


def test_a_bound_that_holds_already_changes_nothing():
    mod = AnnotateSharding(PLAN)(chain(False))
    plain = PropagateSharding()(mod)
    bounded = PropagateSharding(memory_bytes=2 * WEIGHTS)(mod)
    assert str(plain) == str(bounded)


def test_what_cannot_fit_is_refused_with_the_leanest_found():
    with pytest.raises(InfeasibleError, match=r"DIST0801 .*at most 100 bytes") as caught:
        kept(chain(False), 100)
    assert caught.value.exit_code == 3


def test_annotated_weights_stay_as_they_are():
    """The bound asks free parameters only: a plan that pins them cannot be made to fit."""
    pins = [{"param": f"w{i}", "placement": "R"} for i in range(LAYERS)]
    pinned = AnnotateSharding(plan_of([X_RULE, *pins]))(chain(False))
    with pytest.raises(InfeasibleError, match="DIST0801"):
        propagate(pinned, memory_bytes=WEIGHTS // 2)

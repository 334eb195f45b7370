# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Real models through the whole road: the simulator against what an engine really executes."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import asdict

import pytest

from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.hardware.systems.system import System
from tvm_distir.models.model import load_model
from tvm_distir.performance.program.exporter import export
from tvm_distir.performance.simulation.simulator import simulate
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.distribute import distribute

GPT = "zoo:gpt?layers=2,hidden=16,heads=4,vocab=37,positions=8,batch=4,seq=8"


def local_module(strategy, mesh, spec=GPT):
    mod = load_model(spec).mod
    return mod, distribute(mod, make_plan(mod, strategy, mesh))


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [
        ("data_parallel", {"dp": 2}),
        ("megatron", {"dp": 2, "tp": 2}),
        ("megatron", {"tp": 4}),
    ],
)
def test_collectives_are_those_that_the_engine_counts(strategy, mesh):
    mod, local = local_module(strategy, mesh)
    engine = VirtualEngine()
    engine.run(local, draw_inputs(mod, seed=0))
    result = simulate(export(local), System.load("laptop-cpu"))
    counted = [asdict(each) for each in engine.collectives]
    matches = [each.to_dict() for each in result.collectives]
    for each in matches:
        del each["mesh"]
    assert matches == counted
    assert bool(matches) == (strategy == "megatron")


def test_data_parallel_divides_the_work():
    whole, parts = (
        simulate(export(local_module("data_parallel", {"dp": n})[1]), System.load("dgx-a100"))
        for n in (1, 4)
    )
    assert len(parts.devices) == 4
    # What does not depend on the batch (positions and masks) is done by all.
    assert whole.devices[0].flops / 4 <= parts.devices[0].flops <= whole.devices[0].flops / 3.9
    assert parts.devices[0].param_bytes == whole.devices[0].param_bytes
    weights = [
        math.prod(int(n) for n in p.ty.shape) * 4
        for p in load_model(GPT).mod["main"].params
        if str(p.ty.dtype) == "float32"
    ]
    constants = whole.devices[0].param_bytes - sum(weights)
    assert 0 <= constants < 0.01 * sum(weights)  # positions, scalars
    assert parts.unmodelled_ops == ()


def test_llama_70b_is_simulated_quickly():
    """80 layers cost what their distinct functions cost, and a few array operations each."""
    spec = "zoo:llama?size=70b,layers=8,batch=8"
    program = export(local_module("megatron", {"dp": 8, "tp": 8}, spec)[1])
    assert len(program.functions) == 2
    result = simulate(program, System.load("dgx-a100"))
    assert result.unmodelled_ops == ()
    assert len(result.devices) == 64
    assert len(result.lanes) == 1
    rows = {(each.kind, each.mesh_axis): each.count for each in result.collectives}
    assert rows[("all_reduce", "tp")] >= 16  # two per layer
    # The weights of 8 layers and of the embeddings, in two bytes, an eighth per device.
    hidden, ffn, vocab = 8192, 28672, 32000
    layer = 2 * hidden * hidden + 2 * hidden * hidden // 8 + 3 * hidden * ffn + 2 * hidden
    expected = (8 * layer + 2 * vocab * hidden) * 2 / 8
    assert result.devices[0].param_bytes == pytest.approx(expected, rel=0.01)
    assert sum(result.timings_s.values()) < 5


@pytest.mark.parametrize("order", ["function first", "folder first"])
def test_public_names_can_be_called_in_any_order_of_imports(order):
    """``td.export`` is a function; importing from the folder of that name must not break it."""
    folders = (
        "import tvm_distir.performance.program, tvm_distir.performance.simulation\n"
        "from tvm_distir.performance.program import Program\n"
        "from tvm_distir.performance.simulation.result import Result\n"
    )
    names = "import tvm_distir as td\ntd.export, td.simulate\n"
    code = (
        (folders + names if order == "folder first" else names + folders)
        + "from tvm import ir\n"
        + "from tvm_distir.support.errors import DistIRError\n"
        + "for call in (lambda: td.export(ir.IRModule()), lambda: td.simulate(3)):\n"
        + "    try:\n        call()\n    except (DistIRError, TypeError) as err:\n"
        + "        print(type(err).__name__, err)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = out.stdout.splitlines()
    assert "DIST0714" in first
    assert "missing 1 required positional argument: 'system'" in second

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The clock by which the scheduler orders bindings is the simulator's, op by op."""

from __future__ import annotations

import pytest
from tvm import ir, relax

from tvm_distir.core.ir.types import relax_functions, value_types
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.rewriting.native import function_index as native
from tvm_distir.core.rewriting.scopes import bindings_in
from tvm_distir.hardware.systems.system import System
from tvm_distir.models.model import load_model
from tvm_distir.models.tvmscript import from_tvmscript
from tvm_distir.performance.program.exporter import export
from tvm_distir.performance.simulation.function_reader import read_functions
from tvm_distir.performance.simulation.lowering import Lowering
from tvm_distir.performance.simulation.op_costs import OpCosts
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.transforms.distribute import distribute
from tvm_distir.transforms.optimize.binding_costs import BindingCosts
from tvm_distir.transforms.training.train_step import train_step

MODELS = {
    "gpt": "zoo:gpt?size=tiny,layers=2,hidden=32,vocab=67,batch=16",
    "moe": "zoo:moe?size=tiny,layers=1,hidden=32,ffn=24,vocab=67,batch=16",
    "resnet": "zoo:resnet?size=tiny,depth=10,width=4,image=48,batch=16",
}
CASES = [
    ("gpt", "data_parallel+megatron", {"dp": 8, "tp": 2}, False),
    ("gpt", "data_parallel+megatron", {"dp": 8, "tp": 2}, True),
    ("moe", "data_parallel+expert_parallel", {"dp": 4, "ep": 4}, False),
    ("resnet", "data_parallel+spatial_parallel", {"dp": 2, "sp": 4}, False),
]

TWO_STAGES = """
@I.ir_module
class Module:
    @R.function
    def main(
        c: R.Tensor((), "bool"), x: R.Tensor((8, 64), "float32"), w: R.Tensor((64, 64), "float32")
    ):
        if c:
            t = R.reshape(x, R.shape([4, 128]))
            u = R.reshape(t, R.shape([8, 64]))
            y = R.matmul(u, w)
        else:
            y = R.add(x, x)
        v = R.permute_dims(w)
        z = R.matmul(y, v)
        return z
"""


def compare(local, system):
    """Compare the times of all bindings of a level-5 module; count what was compared, by kind."""
    program = export(local)
    simulated = OpCosts(program, system)
    lowering = Lowering()
    roots = [entry.function for entry in program.entries]
    numbers = read_functions(lowering, program, simulated, roots)
    scheduled = BindingCosts(local, system)
    devices = {entry.function: entry.device_ids for entry in program.entries}
    compared: dict[str, int] = {}
    for gv, fn in relax_functions(local):
        name = str(gv.name_hint)
        if name not in program.functions:
            continue
        (reading,) = native.read_functions([fn])
        costs = scheduled.of(reading, devices.get(name, ()))
        ops, number = program.functions[name].ops, -1
        for place, (var, value) in enumerate(bindings_in(fn.body)):
            found_ps = costs.picoseconds(place)
            if not isinstance(value, ir.Call | relax.If):
                assert found_ps == 0, var.name
                continue
            if isinstance(value, ir.Call) and not value_types(var.ty):
                continue  # a shape: nothing runs
            number += 1
            op = ops[number]
            assert op.name == str(var.name)
            if op.callees:
                own_ps = max(lowering.functions[numbers[each]].work_ps for each in op.callees)
            else:
                own_ps = 0 if op.kind == "view" else simulated.row(name, number).duration_ps
            assert found_ps == own_ps, (name, var.name, op.op)
            assert costs.is_view(place) == (op.kind in ("view", "wait"))
            compared[op.kind] = compared.get(op.kind, 0) + 1
        assert number == len(ops) - 1
    return compared


@pytest.mark.parametrize("system", ["dgx-a100", "laptop-cpu"])
@pytest.mark.parametrize(("model", "strategy", "mesh", "train"), CASES)
def test_times_of_bindings_are_those_of_the_simulator(model, strategy, mesh, train, system):
    mod = load_model(MODELS[model]).mod
    mod = train_step(mod, "cross_entropy", "sgd", False) if train else mod
    plan = make_plan(mod, strategy, mesh)
    known = System.load(system)
    result = compare(distribute(mod, plan, bucket_bytes=1 << 20, overlap=known), known)
    assert result["compute"] > 10 and result["collective"] and result["wait"] and result["view"]


@pytest.mark.parametrize("second", [{"start": 4}, {"device_ids": [2, 3, 4, 5]}])
def test_branches_and_transfers_too(tmp_path, second):
    """On two meshes: apart, and sharing devices, which then run entries of their own."""
    path = tmp_path / "module.py"
    header = "from tvm.script import ir as I\nfrom tvm.script import relax as R\n"
    path.write_text(header + TWO_STAGES)
    mod = from_tvmscript(str(path))
    on = {"placement": "S[0]", "mesh": "a"}
    plan = Plan.from_dict(
        {
            "schema_version": 1,
            "meshes": {"a": {"axes": {"x": 4}}, "b": {"axes": {"y": 4}, **second}},
            "rules": [
                {"param": "c", "placement": "R", "mesh": "a"},
                {"param": "x", **on},
                {"param": "w", **on, "placement": "R"},
                {"value": "z", "placement": "S[1]", "mesh": "b"},
            ],
        }
    )
    system = System.load("dgx-a100")
    result = compare(distribute(mod, plan), system)
    assert (
        result["transfer"] >= 2
        and result["branch"] >= 1
        and isinstance(mod["main"], relax.Function)
    )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Orders of the mesh axes that shard a dim together, by execution and by exhaustive search."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.distributed import DeviceMesh
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td
from tests.core.passes.view_modules import redistribute
from tvm_distir.core.ir.placement import parse_placement
from tvm_distir.core.ir.types import as_dtensor
from tvm_distir.core.ir.views import Tiling
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import Study, TrainingOptions
from tvm_distir.support import LevelError, LoweringError, PropagationError
from tvm_distir.transforms.axis_orders.order_choice import OrderChoice, tiles_of
from tvm_distir.transforms.axis_orders.order_problem import OrderProblem
from tvm_distir.transforms.axis_orders.ordered_dims import NONE
from tvm_distir.transforms.axis_orders.passes import OrderAxes


@I.ir_module
class Optimizer:
    """A weight that ``tp`` shards, and a state that ``dp`` shards inside of that."""

    I.module_attrs({"mesh_axes": [["dp", "tp"]]})
    I.module_global_infos({"mesh": [R.device_mesh((2, 4), I.Range(0, 8))]})

    @R.function(private=True)
    def update(
        w: R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]"),
        m: R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]"),
    ) -> R.Tuple(
        R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]"),
        R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]"),
    ):
        with R.dataflow():
            new = R.add(m, w)
            out = R.subtract(w, new)
            R.output(out, new)
        return (out, new)

    @R.function
    def main(
        w: R.DTensor((24, 6), "float32", "mesh[0]", "R, S[0]"),
        m: R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]"),
    ) -> R.Tuple(
        R.DTensor((24, 6), "float32", "mesh[0]", "R, S[0]"),
        R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]"),
    ):
        cls = Optimizer
        with R.dataflow():
            part: R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]") = R.dist.redistribute(
                w, device_mesh="mesh[0]", placement="S[0], S[0]"
            )
            both = cls.update(part, m)
            new: R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]") = both[0]
            state: R.DTensor((24, 6), "float32", "mesh[0]", "S[0], S[0]") = both[1]
            full: R.DTensor((24, 6), "float32", "mesh[0]", "R, S[0]") = R.dist.redistribute(
                new, device_mesh="mesh[0]", placement="R, S[0]"
            )
            R.output(full, state)
        return (full, state)


def collectives(mod):
    """The collectives of a module at level 5, in order of their text."""
    names = re.findall(r"R\.dist\.(\w+)", mod.script())
    return sorted(name for name in names if name not in ("view", "const"))


def lowered(mod):
    passes = [td.transforms.LegalizeRedistribute(), td.transforms.LowerDistIR()]
    return tvm.transform.Sequential(passes)(mod)


@pytest.mark.quick
def test_a_state_inside_of_tensor_parallelism_needs_no_exchange():
    assert collectives(lowered(Optimizer)) == ["exchange", "exchange"]
    ordered = OrderAxes()(Optimizer)
    assert ordered.attrs["mesh_axes"][1] == ["tp", "dp"]
    local = lowered(ordered)
    assert collectives(local) == ["all_gather", "local_slice"]
    rng = np.random.default_rng(0)
    w, m = (rng.standard_normal((24, 6)).astype("float32") for _ in range(2))
    full, state = td.run(local, [w, m])
    np.testing.assert_array_equal(state, m + w)
    np.testing.assert_array_equal(full, w - (m + w))


@pytest.mark.quick
def test_each_level_is_parsed_back():
    ordered = OrderAxes()(Optimizer)
    for mod in (ordered, td.transforms.LegalizeRedistribute()(ordered), lowered(ordered)):
        tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod, True)


@pytest.mark.quick
def test_a_module_with_the_cheapest_orders_stays_as_it_is():
    ordered = OrderAxes()(Optimizer)
    assert OrderAxes()(ordered).same_as(ordered)


class Chain:
    """A random module at level 3: sums, transposes and redistributions on one mesh."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.sizes = [(2, 2), (2, 3), (2, 2, 2)][seed % 3]
        self.mesh = DeviceMesh(self.sizes, list(range(math.prod(self.sizes))))
        self.builder = relax.BlockBuilder()
        self.shape = (12, 12)

    def labels(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.integers(-1, 2, len(self.sizes)))

    def module(self, steps: int) -> tvm.IRModule:
        tensor = relax.TensorType(self.shape, "float32")
        first = [self.labels() for _ in range(2)]
        params = [
            relax.Var(f"x{n}", as_dtensor(tensor, self.mesh, labels))
            for n, labels in enumerate(first)
        ]
        values = list(zip(params, first, strict=True))
        self.builder.global_infos = {"mesh": [self.mesh]}
        with self.builder.function("main", params):
            with self.builder.dataflow():
                for _ in range(steps):
                    values.append(self.step(values))
                last = self.builder.emit_output(values[-1][0])
            self.builder.emit_func_output(last)
        mod = self.builder.get()
        mod.update_global_info("mesh", [self.mesh])
        axes = [f"a{number}" for number in range(len(self.sizes))]
        return mod.with_attr("mesh_axes", [axes])

    def step(self, values):
        x, labels = values[int(self.rng.integers(len(values)))]
        kind = self.rng.integers(4)
        if kind == 0:
            y = self.builder.emit(relax.op.permute_dims(x, [1, 0]))
            return y, tuple(1 - d if d >= 0 else d for d in labels)
        if kind == 1:
            other = values[int(self.rng.integers(len(values)))]
            return self.builder.emit(relax.op.add(x, self.moved(other[0], labels))), labels
        target = self.labels()
        return self.moved(x, target), target

    def moved(self, x, labels):
        return self.builder.emit(redistribute(x, self.mesh, labels))


def exhaustive(choice: OrderChoice) -> float:
    """The lowest cost over all orders of all dims."""
    roots = choice.problem.dims.free()
    axes = [list(itertools.permutations(choice.problem.dims.axes[root])) for root in roots]
    return min(choice._total(dict(zip(roots, chosen))) for chosen in itertools.product(*axes))


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(24))
def test_the_chosen_orders_cost_least(seed):
    choice = OrderChoice(OrderProblem(Chain(seed).module(8)))
    roots = choice.problem.dims.free()
    if math.prod(math.factorial(len(choice.problem.dims.axes[root])) for root in roots) > 1500:
        pytest.skip("more than 1,500 combinations of orders")
    assert choice._total(choice.run()) == exhaustive(choice)


@pytest.mark.quick
@pytest.mark.parametrize("seed", range(9))
def test_ordered_modules_compute_the_same(seed):
    chain = Chain(seed)
    mod = chain.module(8)
    inputs = [chain.rng.integers(-4, 5, chain.shape).astype("float32") for _ in range(2)]
    np.testing.assert_array_equal(
        td.run(lowered(OrderAxes()(mod)), inputs), td.run(lowered(mod), inputs)
    )


@pytest.mark.quick
@pytest.mark.parametrize("order", [("dp", "tp"), ("tp", "dp")])
def test_a_plan_states_which_axis_is_major(order):
    mod = td.zoo.build("mlp", {"batch": 16, "layers": 1, "hidden": 16})
    plan = td.Plan(mesh={"dp": 2, "tp": 4}, rules={"x": td.P(order, None)})
    assert plan.to_dict()["rules"][0]["placement"] == [[*order]]
    assert td.Plan.from_dict(plan.to_dict()) == plan
    local = td.distribute(mod, plan)
    port = local["main"].attrs["dist.io"]["inputs"][0]
    shards = np.arange(8).reshape(2, 4) if order[0] == "dp" else np.arange(8).reshape(2, 4).T
    assert [int(n) for n in port.get("mesh", {}).get("devices", range(8))] == [*shards.ravel()]
    assert td.verify(mod, plan, exact=True).equal
    assert "dist.axis_orders" not in local.script()


@pytest.mark.quick
@pytest.mark.parametrize("mesh", [{"dp": 2, "tp": 1}, {"dp": 1, "tp": 1}])
def test_an_order_with_an_axis_of_one_device_means_nothing(mesh):
    mod = td.zoo.build("mlp", {"batch": 16, "layers": 1, "hidden": 16})
    plan = td.Plan(mesh=mesh, rules={"x": td.P(("tp", "dp"), None)})
    local = td.distribute(mod, plan)
    assert "dist.axis_orders" not in local.script()
    assert "mesh" not in local["main"].attrs["dist.io"]["inputs"][0]
    x, weight, bias = inputs = draw_inputs(mod, seed=0)
    (y,) = td.run(local, inputs)
    np.testing.assert_allclose(y, x @ weight.T + bias, 1e-4, 1e-5)


@pytest.mark.quick
def test_axes_of_one_device_stay_behind_those_that_have_an_order():
    tiles = tiles_of(Tiling(((0, 2, 1), (3,)), frozenset()), (7, NONE), {7: (2, 0)})
    assert tiles.dims == ((2, 0, 1), (3,))


@pytest.mark.quick
def test_an_order_of_what_a_function_does_not_have_is_refused():
    stated = {"nothing": [[1, 0]]}
    for mod, problem in ((Optimizer, "does not have"), (OrderAxes()(Optimizer), "has views")):
        wrong = mod.clone()
        wrong["main"] = wrong["main"].with_attr("dist.axis_orders", stated)
        with pytest.raises(PropagationError, match=rf"DIST0405 main/nothing: .*{problem}"):
            OrderAxes()(wrong)


@pytest.mark.quick
def test_stated_orders_that_calls_tie_are_refused():
    plan = td.Plan(
        mesh={"dp": 2, "tp": 2},
        rules={"w": td.P(("dp", "tp")), "m": td.P(("tp", "dp"))},
    )

    @R.function
    def main(w: R.Tensor((8,), "float32"), m: R.Tensor((8,), "float32")):
        with R.dataflow():
            gv = R.add(w, m)
            R.output(gv)
        return gv

    with pytest.raises(PropagationError, match=r"DIST0405 main/\w: .*has another"):
        td.distribute(tvm.IRModule({"main": main}), plan)


@pytest.mark.quick
def test_stated_orders_are_not_ignored_without_the_pass():
    mod = td.zoo.build("mlp", {"batch": 16, "layers": 1, "hidden": 16})
    plan = td.Plan(mesh={"dp": 2, "tp": 4}, rules={"x": td.P(("tp", "dp"), None)})
    passes = [td.transforms.AnnotateSharding(plan), td.transforms.PropagateSharding()]
    placed = tvm.transform.Sequential(passes)(mod)
    with pytest.raises(LevelError, match=r"DIST0451 main/x.*Run OrderAxes"):
        td.transforms.LegalizeRedistribute()(placed)


@pytest.mark.parametrize(
    ("strategy", "mesh", "moved"),
    [
        ("zero:stage=1+megatron:sequence=1", {"dp": 2, "tp": 2}, "inputs"),
        ("context_parallel+megatron:sequence=1", {"tp": 2, "cp": 2}, "messages"),
    ],
)
def test_pipelined_steps_keep_views(strategy, mesh, moved):
    """Of states inside of tensor parallelism, and of tokens that stages send each other."""
    study = Study(
        "zoo:gpt?layers=2,hidden=32,heads=4,vocab=32,positions=16,seq=16",
        strategy=f"pipeline:micro_batches=2+{strategy}",
        mesh={"pp": 2, **mesh},
        batch=8,
        train=TrainingOptions(optimizer="adamw"),
    )
    local = study.local
    ports = [port for fn in local.functions.values() for port in _inputs(fn)]
    text = td.transforms.ExpandSchedule()(local).script()
    sends = re.findall(r'R\.dist\.(?:send|recv)\(.*device_mesh="mesh\[(\d)\]"', text)
    on_views = {"inputs": any("mesh" in port for port in ports), "messages": max(sends) > "1"}
    assert on_views[moved]
    assert text.count("R.dist.exchange") == 0
    td.verify(study.step, study.step_plan, dist=local, locate=False).check()


@pytest.mark.parametrize(
    ("model", "strategy", "mesh"),
    [
        (
            "gpt?layers=2,hidden=7168,heads=56,vocab=131072,positions=4096,seq=4096,fused_qkv=1",
            "zero:stage=1+megatron:sequence=1",
            {"dp": 32, "tp": 8},
        ),
        (
            "llama?layers=4,hidden=8192,heads=64,kv_heads=8,vocab=128256,seq=8192",
            "pipeline:micro_batches=16+context_parallel+zero:stage=1+megatron:sequence=1",
            {"pp": 4, "dp": 2, "cp": 2, "tp": 4},
        ),
    ],
)
def test_published_recipes_need_no_exchange(model, strategy, mesh):
    """Of 32B and 70B, with fewer layers, on H100."""
    analysis = td.analyze(
        f"zoo:{model},dtype=bfloat16", strategy=strategy, mesh=mesh, system="h100", batch=512,
        train={"optimizer": "adamw"},
    )  # fmt: skip
    assert "R.dist.exchange" not in analysis.module.script()
    assert all(lane.modules for lane in analysis.simulation.lanes)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("S[0], S[1], S[1]", "S[0], S[2], R", ["all_gather", "all_to_all"]),
        ("S[2], S[1], S[1]", "S[2], S[2], R", ["all_gather", "all_to_all"]),
        ("S[0], S[1], R", "R, R, S[2]", ["all_gather", "all_gather", "local_slice"]),
        ("S[0], S[1], S[1]", "S[0], R, S[1]", ["exchange"]),  # tp alone cuts other blocks
    ],
)
def test_exchanges_are_plain_collectives_where_these_send_as_much(before, after, kinds):
    mesh, shape = DeviceMesh((2, 2, 3), list(range(12))), (4, 24, 12)
    builder, tensor = relax.BlockBuilder(), relax.TensorType(shape, "float32")
    labels = [parse_placement(text) for text in (before, after)]
    x = relax.Var("x", as_dtensor(tensor, mesh, labels[0]))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(redistribute(x, mesh, labels[1]))
        builder.emit_func_output(out)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh])
    local = lowered(mod)
    assert collectives(local) == kinds
    value = np.arange(math.prod(shape), dtype="float32").reshape(shape)
    np.testing.assert_array_equal(td.run(local, [value])[0], value)


def _inputs(fn):
    attrs = getattr(fn, "attrs", None) or {}
    return list(attrs["dist.io"]["inputs"]) if "dist.io" in attrs else []


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [
        ("zero:stage=1+megatron:sequence=1", {"dp": 2, "tp": 4}),
        ("zero:stage=3+megatron", {"tp": 4, "dp": 2}),
        ("context_parallel+zero:stage=1+megatron:sequence=1", {"dp": 2, "cp": 2, "tp": 4}),
    ],
)
def test_recipes_of_trainers_need_no_exchange(strategy, mesh):
    model = "zoo:llama?layers=2,hidden=8192,heads=64,kv_heads=8,vocab=128256,seq=8192"
    train = TrainingOptions(optimizer="adamw")
    study = Study(
        f"{model},dtype=bfloat16", strategy=strategy, mesh=mesh, batch=8, train=train, system="h100"
    )
    assert "exchange" not in study.local.script()


def test_reports_name_a_mesh_without_its_views():
    """And give advice on the batch, which only steps of a single mesh get."""
    analysis = td.analyze(
        "zoo:gpt?layers=1,hidden=256,heads=4,vocab=512,positions=128,seq=128,fused_qkv=1",
        strategy="zero:stage=1+megatron:sequence=1", mesh={"dp": 2, "tp": 2}, system="h100",
        batch=8, train={"optimizer": "adamw"},
    )  # fmt: skip
    assert len(analysis.module.global_infos["mesh"]) == 2
    report = analysis.report
    assert [(mesh.name, mesh.axes) for mesh in report.meshes] == [("mesh0", ("dp", "tp"))]
    assert {report.axis_words(total) for total in report.collectives} == {"dp", "tp"}
    assert report.focus.endswith("of mesh0")


@pytest.mark.quick
def test_control_flow_is_refused_by_name():
    """Propagation writes branches as functions; here the orders of their values would be lost."""
    mesh = DeviceMesh((2, 2), list(range(4)))
    placed = as_dtensor(relax.TensorType((8, 4), "float32"), mesh, (0, 0))
    c, x, r = relax.Var("c", relax.TensorType((), "bool")), *(relax.Var(n, placed) for n in "xr")
    choice = relax.If(c, relax.SeqExpr([], x), relax.SeqExpr([], x))
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(r, choice)])], r)
    fn = relax.Function([c, x], body, placed).with_attr("global_symbol", "main")
    mod = tvm.IRModule({"main": fn}, global_infos={"mesh": [mesh]})
    with pytest.raises(LoweringError, match=r"DIST0504 main/r \(If\)"):
        OrderAxes()(mod.with_attr("mesh_axes", [["dp", "tp"]]))

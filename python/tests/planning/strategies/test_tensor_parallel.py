# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel for any model: bounds, fewest bytes, against exhaustion and Megatron."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pytest
from tvm import ir, relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import tvm_distir as td
from tests.planning.strategies.weight_bounds import bounds_of
from tvm_distir.core.ir.placement import R as WHOLE
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.propagation.placement_search import PlacementSearch
from tvm_distir.core.propagation.solve import exact
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.performance.simulation.result import Result
from tvm_distir.planning import strategies as strategy
from tvm_distir.planning.strategies.weight_search import Bounds, search
from tvm_distir.support.errors.tree import MeshError, PlanError

GPT = {"layers": 2, "hidden": 96, "heads": 4, "seq": 16, "batch": 4, "vocab": 512}
ZOO = {
    "gpt": lambda: td.zoo.gpt(**GPT),
    "gpt, flat, odd vocabulary": lambda: td.zoo.gpt(**{**GPT, "vocab": 509}, nested=0),
    "llama": lambda: td.zoo.llama(size="tiny", layers=2),
}


@I.ir_module
class Mlp:
    """Three products; names say nothing."""

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        a: R.Tensor((16, 32), "float32"),
        b: R.Tensor((32, 24), "float32"),
        c: R.Tensor((24, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            u = R.nn.relu(R.matmul(x, a))
            v = R.nn.relu(R.matmul(u, b))
            w = R.matmul(v, c)
            R.output(w)
        return w


@I.ir_module
class Tied:
    """A table looked up and multiplied by."""

    @R.function
    def main(
        ids: R.Tensor((4, 6), "int64"),
        table: R.Tensor((40, 16), "float32"),
        gain: R.Tensor((16,), "float32"),
        up: R.Tensor((16, 64), "float32"),
        down: R.Tensor((64, 16), "float32"),
    ) -> R.Tensor((4, 6, 40), "float32"):
        with R.dataflow():
            flat = R.take(table, R.reshape(ids, (24,)), axis=0)
            h = R.multiply(R.reshape(flat, (4, 6, 16)), gain)
            m = R.add(h, R.matmul(R.nn.gelu(R.matmul(h, up)), down))
            logits = R.matmul(m, R.permute_dims(table))
            R.output(logits)
        return logits


@I.ir_module
class Convolutions:
    """A residual block with batch norm, a grouped convolution in it, and a head."""

    @R.function
    def main(
        x: R.Tensor((4, 8, 6, 6), "float32"),
        p: R.Tensor((16, 8, 1, 1), "float32"),
        q: R.Tensor((16, 4, 3, 3), "float32"),
        gamma: R.Tensor((16,), "float32"),
        beta: R.Tensor((16,), "float32"),
        mean: R.Tensor((16,), "float32"),
        var: R.Tensor((16,), "float32"),
        r: R.Tensor((8, 16, 1, 1), "float32"),
        head: R.Tensor((288, 10), "float32"),
    ) -> R.Tensor((4, 10), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            u = R.nn.relu(R.nn.conv2d(x, p))
            v = R.nn.conv2d(u, q, padding=(1, 1), groups=4)
            n = R.nn.batch_norm(v, gamma, beta, mean, var, axis=1, training=False)
            s = R.add(R.nn.conv2d(R.nn.relu(n[0]), r), x)
            y = R.matmul(R.reshape(s, (4, 288)), head)
            R.output(y)
        return y


SMALL = {"mlp": Mlp, "tied": Tied, "convolutions": Convolutions}


def plan_of(mod: ir.IRModule, devices: int, text: str = "tensor_parallel") -> Plan:
    """Plan that meets its bounds: a warning would be an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return strategy.make_plan(mod, text, {"tp": devices})


def simulated(mod: ir.IRModule, plan: Plan) -> Result:
    return td.simulate(td.export(td.distribute(mod, plan)), td.System.load("dgx-a100"))


def sent_bytes(result: Result) -> int:
    return sum(c.wire_bytes_per_device for c in result.collectives)


def labels(plan: Plan) -> list[tuple[Any, ...]]:
    return [rule.placement for rule in plan.rules if rule.kind == "param"]


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", sorted(ZOO))
def test_zoo_models_stay_within_the_bounds_and_megatrons_bytes(name: str, devices: int) -> None:
    """Measured on the lowered module, against one device and against Megatron."""
    mod = ZOO[name]()
    result = simulated(mod, plan_of(mod, devices))
    alone = simulated(mod, strategy.make_plan(mod, "tensor_parallel", {"tp": 1}))
    assert not alone.collectives
    for device in result.devices:
        assert device.param_bytes * devices <= 1.1 * alone.devices[0].param_bytes
        assert device.flops * devices <= 1.1 * alone.devices[0].flops
    megatron = simulated(mod, strategy.make_plan(mod, "megatron", {"tp": devices}))
    assert 0 < sent_bytes(result) <= sent_bytes(megatron)


@pytest.mark.parametrize("layers", [2, 3])
def test_gpt_moves_the_bytes_of_megatron(layers: int) -> None:
    """Where the slack is too small to be spent, the optimum is Megatron's."""
    mod = td.zoo.gpt(**{**GPT, "layers": layers})
    result = simulated(mod, plan_of(mod, 4))
    megatron = simulated(mod, strategy.make_plan(mod, "megatron", {"tp": 4}))
    assert sent_bytes(result) == sent_bytes(megatron) > 0


@pytest.mark.parametrize("devices", [2, 4])
def test_llama_moves_half_an_all_reduce_less_than_megatron(devices: int) -> None:
    """The token table is cut by columns: its rows are gathered, where Megatron sums them."""
    mod = ZOO["llama"]()
    result = simulated(mod, plan_of(mod, devices, "tensor_parallel:slack=1"))
    megatron = simulated(mod, strategy.make_plan(mod, "megatron", {"tp": devices}))
    batch, seq, hidden = 16, 16, 64
    gathered_bytes = 4 * batch * seq * hidden * (devices - 1) // devices
    assert sent_bytes(megatron) == 2 * 5 * gathered_bytes
    assert sent_bytes(result) == sent_bytes(megatron) - gathered_bytes


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", ["bert", "vit", "moe", "resnet", "unet"])
def test_other_models_of_the_zoo_stay_within_the_bounds(name: str, devices: int) -> None:
    """Weights by the lowered module's parameters, FLOPs by the simulator; no warning."""
    mod = td.zoo.build(name, {"size": "tiny"})
    lowered = td.distribute(mod, plan_of(mod, devices))
    bounds = bounds_of(mod, devices)
    data = int(mod["main"].attrs["num_input"])
    pairs = zip(lowered["main"].attrs["dist.io"]["inputs"], lowered["main"].params, strict=True)
    stored = sum(
        4 * math.prod(int(n) for n in param.ty.shape)
        for item, param in pairs
        if int(item["index"]) >= data
    )
    assert stored <= bounds.param_bytes
    whole = sum(4 * math.prod(int(n) for n in p.ty.shape) for p in mod["main"].params[data:])
    assert stored * devices <= 1.2 * whole
    alone = simulated(mod, strategy.make_plan(mod, "data_parallel", {"dp": 1}))
    result = td.simulate(td.export(lowered), td.System.load("dgx-a100"))
    assert not bounds.unsharded_flops
    for device in result.devices:
        assert device.flops * devices <= 1.1 * alone.devices[0].flops
    assert sent_bytes(result) > 0


def test_dims_that_others_use_up_are_avoided() -> None:
    """Four experts over four devices leave nothing of that dim: another one is cut."""
    mod = td.zoo.moe(size="tiny", layers=1)
    with pytest.warns(UserWarning, match="tensor_parallel over"):
        plan = strategy.make_plan(mod, "tensor_parallel+expert_parallel", {"tp": 2, "ep": 4})
    placed = {rule.name: rule.placement for rule in plan.rules if "mlp." in rule.name}
    router = placed.pop("layers.0.mlp.router.weight")
    assert router[1] == WHOLE
    assert len(placed) == 3
    for tensor, expert in placed.values():
        assert (tensor > 0, expert) == (True, 0)


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_training_step_needs_no_integer_program(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lives from forward to backward couples all: bounds and pruning find the optimum."""

    def never(*_: Any) -> None:
        raise AssertionError("the integer solver was asked")

    monkeypatch.setattr(exact, "integer_optimum", never)
    mod = td.train_step(td.zoo.build(model, {"size": "tiny", "layers": 2}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = strategy.tensor_parallel(mod, {"tp": 2})
    assert any(label == 0 for rule in plan.rules for label in rule.placement)


def test_layers_share_one_specialisation() -> None:
    mod = td.zoo.gpt(**{**GPT, "layers": 5})
    lowered = td.distribute(mod, plan_of(mod, 4))
    assert len(lowered.functions) == len(mod.functions) == 2


@pytest.mark.parametrize("name", ["gpt, flat, odd vocabulary", "llama"])
def test_zoo_models_are_verified_with_data_parallel(name: str) -> None:
    mod = ZOO[name]()
    plan = strategy.make_plan(mod, "data_parallel+tensor_parallel", {"dp": 2, "tp": 2})
    assert td.verify(mod, plan, engine="virtual").equal


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_small_models_are_verified(name: str, devices: int) -> None:
    assert td.verify(SMALL[name], plan_of(SMALL[name], devices), engine="virtual").equal


def test_names_play_no_part() -> None:
    """A GPT whose parameters are called p0, p1, ... is placed as the one with names."""
    mod = td.zoo.gpt(**GPT, nested=0)
    fn = mod["main"]
    fresh = [relax.Var(f"p{i}", p.ty) for i, p in enumerate(fn.params)]
    body = relax.utils.copy_with_new_vars(fn).with_attr("num_input", 1)
    body = relax.Function(
        fresh,
        body.bind_params(dict(zip(body.params, fresh))).body,
        body.ret_ty,
        attrs=ir.make_node("ir.DictAttrs", global_symbol="main", num_input=1),
    )
    renamed = ir.IRModule({ir.GlobalVar("main"): body})
    assert labels(plan_of(renamed, 2)) == labels(plan_of(mod, 2))


def equal_shares(explorer: PlacementSearch, devices: int) -> Bounds:
    """Bounds of a model all of whose weights and FLOPs can be sharded, worked out here."""
    alone = explorer.alone()
    parts = 10 * devices
    return Bounds(11 * alone.param_bytes // parts, 11 * alone.flops // parts, {}, {})


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize(("name", "count"), [("mlp", 3), ("tied", 4)])
def test_the_search_finds_what_exhaustion_finds(name: str, count: int, devices: int) -> None:
    """All placements of the weights are tried: none within the bounds moves fewer bytes."""
    mod = SMALL[name]
    explorer = PlacementSearch(mod, "tp", devices, {"main": range(1, count + 1)})
    bounds = equal_shares(explorer, devices)
    result, _ = search(explorer, bounds)
    assert bounds.excess(result.footprint) == 0
    choices = [[WHOLE, *range(len(mod["main"].params[i].ty.shape))] for i in range(1, count + 1)]
    best = None
    for combination in itertools.product(*choices):
        placed = {"main": dict(zip(range(1, count + 1), combination))}
        trial = explorer.settled(placed, Costs(memory=1)).footprint
        if bounds.excess(trial) == 0 and (best is None or trial.sent_bytes < best):
            best = trial.sent_bytes
    assert best is not None and result.footprint.sent_bytes <= best


def test_ops_on_light_weights_divide_the_batch() -> None:
    """Three channels are too few for four devices: the images are cut by the batch."""
    bb = relax.BlockBuilder()
    x, small, heavy = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (
            ("x", (8, 3, 16, 16)),
            ("small", (3, 3, 3, 3)),
            ("heavy", (48, 4096)),
        )
    )
    with bb.function("main", [x, small, heavy]):
        with bb.dataflow():
            u = bb.emit(relax.op.nn.relu(relax.op.nn.conv2d(x, small, padding=(1, 1))))
            v = bb.emit(relax.op.nn.max_pool2d(u, (4, 4), (4, 4)))
            y = bb.emit_output(relax.op.matmul(relax.op.reshape(v, (8, 48)), heavy))
        bb.emit_func_output(y)
    mod = bb.get()
    plan = plan_of(mod, 4)
    assert [r for r in plan.rules if r.kind == "value"]
    result = simulated(mod, plan)
    pooled_bytes = 4 * 8 * 48
    assert 0 < sent_bytes(result) <= pooled_bytes
    assert td.verify(mod, plan, engine="virtual").equal


def test_weights_that_no_op_takes_cut_are_stored_cut() -> None:
    """Two groups over four devices: the weight lies cut, is gathered, and the batch is divided."""
    bb = relax.BlockBuilder()
    x, grouped, head = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", (8, 16, 4, 4)), ("grouped", (32, 8, 3, 3)), ("head", (32, 8)))
    )
    with bb.function("main", [x, grouped, head]):
        with bb.dataflow():
            u = bb.emit(relax.op.nn.conv2d(x, grouped, padding=(1, 1), groups=2))
            v = bb.emit(relax.op.mean(relax.op.nn.relu(u), [2, 3]))
            y = bb.emit_output(relax.op.matmul(v, head))
        bb.emit_func_output(y)
    mod = bb.get()
    plan = plan_of(mod, 4)
    data, stored, used = (r for r in plan.rules if r.kind == "param")
    assert (stored.placement, stored.stationary) == ((0,), False)
    assert used.stationary and not data.stationary
    contents = sum(d.param_bytes for d in simulated(mod, plan).devices[:1])
    assert 4 * contents <= 1.1 * 4 * (32 * 8 * 9 + 32 * 8)
    moved = {c.kind: c.count for c in simulated(mod, plan).collectives}
    assert moved["all_gather"] >= 1
    report = td.verify(mod, plan, engine="virtual")
    assert report.equal
    both = strategy.make_plan(mod, "data_parallel+tensor_parallel", {"dp": 2, "tp": 4})
    assert td.verify(mod, both, engine="virtual").equal


def test_one_device_holds_all() -> None:
    plan = strategy.make_plan(Mlp, "tensor_parallel", {"tp": 1})
    assert labels(plan) == [(WHOLE,)] * 4
    assert [rule.stationary for rule in plan.rules] == [False, True, True, True]


def test_a_bound_that_cannot_hold_is_reported() -> None:
    """5 rows over 4 devices are 2 at most: 1.6 times an equal share."""

    @I.ir_module
    class Odd:
        @R.function
        def main(x: R.Tensor((4, 3), "float32"), w: R.Tensor((3, 5), "float32")) -> R.Tensor(
            (4, 5), "float32"
        ):
            with R.dataflow():
                y = R.matmul(x, w)
                R.output(y)
            return y

    with pytest.warns(UserWarning, match=r"stores 24 bytes of weights, not 16"):
        plan = strategy.make_plan(Odd, "tensor_parallel", {"tp": 4})
    assert labels(plan) == [(WHOLE,), (1,)]


@pytest.mark.parametrize(
    ("text", "axes", "error", "message"),
    [
        ("tensor_parallel", {"dp": 2}, MeshError, "DIST0206"),
        ("tensor_parallel:slack=-1", {"tp": 2}, PlanError, "DIST0231"),
        ("tensor_parallel", {"tp": 64}, PlanError, "DIST0233.*too small for 64 devices"),
    ],
)
def test_errors(text: str, axes: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        strategy.make_plan(Mlp, text, axes)

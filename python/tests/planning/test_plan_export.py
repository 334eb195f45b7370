# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plans as code of PyTorch and JAX, which is run, and as options that the trainers have."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tests.child_processes import child_environment
from tvm_distir.core.ir.placement import shard_slices
from tvm_distir.interface.command import main
from tvm_distir.interface.command.export_plan import FORMATS
from tvm_distir.planning.plan_export.axis_uses import describe
from tvm_distir.planning.plan_export.plan_formats import PLAN_FORMATS
from tvm_distir.support.errors import DistIRError, PlanError, UsageError

RUN = Path(__file__).with_name("torch_plan_run.py")


@pytest.fixture(scope="module")
def llama() -> Any:
    return td.zoo.llama(size="tiny", layers=2, batch=4)


def _plan(mod: Any, strategy: str, **mesh: int) -> td.Plan:
    return td.planning.make_plan(mod, strategy, mesh)


def _step(model: str, strategy: str, mesh: dict[str, int], **options: Any) -> tuple[Any, td.Plan]:
    """The training step of a strategy, and its plan."""
    train = {"optimizer": "adam"}
    analysis = td.analyze(
        model, strategy=strategy, mesh=mesh, system="dgx-a100", train=train, **options
    )
    return analysis.study.step, analysis.plan


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [
        ("megatron", {"tp": 2}),
        ("data_parallel+megatron", {"dp": 2, "tp": 2}),
        ("fsdp", {"dp": 2}),
    ],
)
def test_code_for_torch_runs_equal_on_gloo(
    llama: Any, strategy: str, mesh: dict[str, int], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    plan = _plan(llama, strategy, **mesh)
    (tmp_path / "parallelism.py").write_text(td.export_plan(llama, plan, "dtensor"))
    exported = describe(llama, plan)
    shapes = {weight.name: weight.shape for weight in exported.weights}
    sizes = tuple(mesh.values())
    local = {}
    for weight in exported.weights:
        cuts = shard_slices(weight.shape, weight.labels, sizes, (0,) * len(sizes))
        local[weight.name] = [stop - start for start, stop in cuts]
    (tmp_path / "case.json").write_text(
        json.dumps({"shapes": shapes, "ranks": int(np.prod(sizes))})
    )
    run = subprocess.run(
        [sys.executable, str(RUN), str(tmp_path)],
        env=child_environment(tmp_path, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["difference"] < 1e-5 < result["magnitude"]
    if strategy != "fsdp":  # fully_shard chooses the dims by itself
        assert result["local"] == local


@pytest.mark.parametrize("strategy", ["tensor_parallel", "data_parallel+tensor_parallel"])
def test_code_for_jax_gives_devices_the_shards_of_the_plan(strategy: str) -> None:
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    jax = pytest.importorskip("jax")
    if len(jax.devices()) < 4:
        pytest.skip("JAX was started with fewer devices")
    mod = td.zoo.mlp(layers=2, hidden=16, batch=8)
    mesh = {"tp": 2} if strategy == "tensor_parallel" else {"dp": 2, "tp": 2}
    plan = _plan(mod, strategy, **mesh)
    names: dict[str, Any] = {}
    exec(td.export_plan(mod, plan, "jax"), names)
    jax_mesh, shardings = names["shardings"]()
    assert dict(jax_mesh.shape) == mesh
    rng = np.random.default_rng(0)
    parameters = describe(mod, plan).parameters
    arrays = {p.name: rng.normal(size=p.shape).astype("float32") for p in parameters}
    placed = {name: jax.device_put(array, shardings[name]) for name, array in arrays.items()}
    sizes = tuple(mesh.values())
    for parameter in parameters:
        for coordinates in np.ndindex(*sizes):
            device = jax_mesh.devices[coordinates]
            [stored] = [x for x in placed[parameter.name].addressable_shards if x.device == device]
            cuts = shard_slices(parameter.shape, parameter.labels, sizes, coordinates)
            box = tuple(slice(*cut) for cut in cuts)
            assert np.array_equal(np.asarray(stored.data), arrays[parameter.name][box])

    def model(p: dict[str, Any]) -> Any:
        h = jax.nn.relu(p["x"] @ p["layers.0.linear.weight"].T + p["layers.0.linear.bias"])
        return h @ p["head.weight"].T + p["head.bias"]

    (ours,) = td.run(td.distribute(mod, plan), [*arrays.values()], engine="virtual")
    assert np.allclose(np.asarray(jax.jit(model)(placed)), ours, atol=1e-5)


OPTIONS = [
    ("zoo:llama?size=tiny,batch=8", "data_parallel+megatron", {"dp": 2, "tp": 2}, {},
     {"tensor-model-parallel-size": 2, "micro-batch-size": 4, "global-batch-size": 8}),
    ("zoo:gpt?size=tiny,layers=4", "pipeline:micro_batches=4+megatron", {"pp": 2, "tp": 2},
     {"batch": 16},
     {"tensor-model-parallel-size": 2, "pipeline-model-parallel-size": 2, "micro-batch-size": 4,
      "global-batch-size": 16}),
    ("zoo:llama?size=tiny", "data_parallel+megatron:sequence=1", {"dp": 2, "tp": 2},
     {"batch": 16, "recompute": "checkpoint"},
     {"tensor-model-parallel-size": 2, "sequence-parallel": None, "micro-batch-size": 8,
      "global-batch-size": 16, "recompute-granularity": "full", "recompute-method": "uniform",
      "recompute-num-layers": 1}),
    ("zoo:gpt?size=tiny", "data_parallel+zero:stage=1", {"dp": 4}, {"batch": 16},
     {"use-distributed-optimizer": None, "micro-batch-size": 4, "global-batch-size": 16}),
    ("zoo:gpt?size=tiny", "data_parallel:axis=pod+zero:stage=1", {"pod": 4, "dp": 2},
     {"batch": 16},
     {"use-distributed-optimizer": None, "num-distributed-optimizer-instances": 4,
      "micro-batch-size": 2, "global-batch-size": 16}),
]  # fmt: skip


def _options(text: str) -> dict[str, Any]:
    """The options of lines such as ``--name value``."""
    pairs = (re.fullmatch(r"--([\w.-]+)(?:[ =](\S+))?", line) for line in text.splitlines())
    return {
        match[1]: int(match[2]) if (match[2] or "").isdigit() else match[2]
        for match in pairs
        if match is not None
    }


@pytest.mark.parametrize(("model", "strategy", "mesh", "more", "expected"), OPTIONS)
def test_options_of_megatron(
    model: str, strategy: str, mesh: dict[str, int], more: Any, expected: dict[str, Any]
) -> None:
    """The degrees are those asked for; the batch of a step is micro batch x replicas x parts."""
    step, plan = _step(model, strategy, mesh, **more)
    text = td.export_plan(step, plan, "megatron")
    assert _options(text) == expected and text.count("\n") == len(expected)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_stages_of_zero_are_those_of_deepspeed(stage: int) -> None:
    strategy = f"data_parallel+zero:stage={stage}"
    step, plan = _step("zoo:gpt?size=tiny", strategy, {"dp": 4}, batch=16)
    config = json.loads(td.export_plan(step, plan, "deepspeed"))
    assert config == {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
    }


def test_degrees_of_torchtitan(llama: Any) -> None:
    text = td.export_plan(llama, _plan(llama, "fsdp+megatron", dp=4, tp=2), "torchtitan")
    assert _options(text) == {
        "parallelism.data_parallel_replicate_degree": 1,
        "parallelism.data_parallel_shard_degree": 4,
        "parallelism.tensor_parallel_degree": 2,
        "parallelism.context_parallel_degree": 1,
        "parallelism.no-enable_sequence_parallel": None,
        "training.local_batch_size": 1,
        "training.global_batch_size": 4,
    }


def test_shards_of_the_sequence_share_the_training_state(llama: Any) -> None:
    """As they do in torchtitan and in the distributed optimizer of Megatron-LM."""
    step, mesh = td.train_step(llama, optimizer="adam"), {"dp": 2, "cp": 2}
    gather = "context_parallel:form=gather"
    options = {
        form: _options(td.export_plan(step, _plan(step, f"{text}+{gather}", **mesh), form))
        for form, text in (("torchtitan", "fsdp"), ("megatron", "zero:stage=1"))
    }
    assert options["torchtitan"]["parallelism.data_parallel_shard_degree"] == 2
    assert options["torchtitan"]["parallelism.context_parallel_degree"] == 2
    assert options["megatron"]["context-parallel-size"] == 2
    assert "use-distributed-optimizer" in options["megatron"]
    minor = _plan(step, "data_parallel:axis=pod+zero:stage=1", dp=2, pod=2)
    with pytest.raises(PlanError, match=r'DIST0241.*"pod".*Put "pod" first'):
        td.export_plan(step, minor, "megatron")
    alone = _plan(step, "zero:stage=1,axis=dp+context_parallel", **mesh)
    with pytest.raises(PlanError, match=r"DIST0241.*context parallelism"):
        td.export_plan(step, alone, "megatron")


@pytest.mark.parametrize(
    ("form", "megatron"), [("ring", "p2p"), ("all_to_all", "a2a"), ("gather", "all_gather")]
)
def test_forms_of_context_parallelism(llama: Any, form: str, megatron: str) -> None:
    """They were left out: a trainer ran its usual form. torchtitan 0.3 has one."""
    text = f"context_parallel:form={form}"
    plan = _plan(llama, f"data_parallel+{text}", dp=2, cp=2)
    assert _options(td.export_plan(llama, plan, "megatron"))["cp-comm-type"] == megatron
    step = td.train_step(llama, optimizer="adam")
    plan = _plan(step, f"fsdp+{text}", dp=2, cp=2)
    if form != "gather":
        with pytest.raises(PlanError, match=f'DIST0241.*"{form}"'):
            td.export_plan(step, plan, "torchtitan")
        return
    options = _options(td.export_plan(step, plan, "torchtitan"))
    assert options["parallelism.context_parallel_degree"] == 2


MIXTURE = "zoo:mixtral?size=tiny,batch=8"
EXPERTS: list[tuple[str, str, dict[str, int], dict[str, Any]]] = [
    ("megatron", "expert_parallel", {"ep": 2}, {"expert-model-parallel-size": 2}),
    ("megatron", "data_parallel+expert_parallel", {"dp": 2, "ep": 2},
     {"expert-model-parallel-size": 2}),
    ("megatron", "expert_parallel+megatron", {"ep": 2, "tp": 2},
     {"expert-model-parallel-size": 2, "tensor-model-parallel-size": 2,
      "expert-tensor-parallel-size": 2}),
    ("torchtitan", "fsdp:axis=ep+expert_parallel", {"ep": 2},
     {"parallelism.expert_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 2}),
    ("torchtitan", "fsdp:axis=dp/ep+expert_parallel", {"dp": 2, "ep": 2},
     {"parallelism.expert_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 4}),
]  # fmt: skip


@pytest.fixture(scope="module")
def mixture() -> Any:
    return td.load_model(MIXTURE).mod


@pytest.mark.parametrize(("form", "strategy", "mesh", "expected"), EXPERTS)
def test_degrees_of_expert_parallelism(
    mixture: Any, form: str, strategy: str, mesh: dict[str, int], expected: dict[str, Any]
) -> None:
    """Expert parallelism was exported as ZeRO, or left out."""
    options = _options(td.export_plan(mixture, _plan(mixture, strategy, **mesh), form))
    assert options == {**options, **expected}
    assert {name for name in options if "expert" in name} <= expected.keys()


def test_experts_of_deepspeed(mixture: Any) -> None:
    plan = _plan(mixture, "expert_parallel", ep=2)
    config = json.loads(td.export_plan(mixture, plan, "deepspeed"))
    assert config["zero_optimization"] == {"stage": 0}
    assert config["expert_parallel"] == {"enabled": True, "autoep_size": 2}


@pytest.mark.parametrize(
    ("form", "strategy", "mesh", "words"),
    [
        ("torchtitan", "expert_parallel", {"ep": 2}, "in parts over the ranks of expert"),
        ("deepspeed", "expert_parallel+megatron", {"ep": 2, "tp": 2}, "AutoTP"),
        ("dtensor", "expert_parallel", {"ep": 2}, '"ep" divides experts'),
        ("megatron", "data_parallel+expert_parallel", {"ep": 2, "dp": 2}, "order dp, ep"),
        ("megatron", "data_parallel+megatron", {"tp": 2, "dp": 2}, "order dp, tp"),
    ],
)
def test_experts_and_orders_that_a_format_cannot_express_are_refused(
    mixture: Any, form: str, strategy: str, mesh: dict[str, int], words: str
) -> None:
    with pytest.raises(PlanError, match=f"DIST0241.*{words}"):
        td.export_plan(mixture, _plan(mixture, strategy, **mesh), form)


def test_experts_in_parts_of_zero_are_no_expert_parallelism(mixture: Any) -> None:
    """ZeRO gathers them, though it stores them along the same dim."""
    options = _options(td.export_plan(mixture, _plan(mixture, "fsdp", dp=2), "torchtitan"))
    assert options["parallelism.data_parallel_shard_degree"] == 2
    assert not any("expert" in option for option in options)


def test_no_part_of_a_plan_is_left_out(llama: Any) -> None:
    """Weights used in parts beside the batch or left replicated, rules of values, devices."""
    fsdp = _plan(llama, "fsdp", dp=2).to_dict()
    name = "layers.1.mlp.up_proj.weight"
    rules = [rule for rule in fsdp["rules"] if rule.get("param") != name]
    used = [*rules, {"param": name, "placement": "S[0]", "stationary": True}]
    whole = [*rules, {"param": name, "placement": "R", "stationary": True}]
    value = [*fsdp["rules"], {"value": "rms_norm2", "placement": "S[2]"}]
    for other, words in ((used, "not gathered"), (whole, "no dim"), (value, 'value "rms_norm2"')):
        with pytest.raises(PlanError, match=f"DIST0241.*{words}"):
            td.export_plan(llama, {**fsdp, "rules": other}, "torchtitan")
    plan = _plan(llama, "megatron", tp=2)
    moved = td.Plan([replace(plan.meshes[0], start=4)], plan.rules)
    for form in ("megatron", "torchtitan", "deepspeed", "dtensor"):
        with pytest.raises(PlanError, match=r"DIST0241.*names devices"):
            td.export_plan(llama, moved, form)
    assert "DEVICES = [4, 5]" in td.export_plan(llama, moved, "jax")
    sequence = _plan(llama, "megatron:sequence=1", tp=2)
    assert "placements of intermediate values" in td.export_plan(llama, sequence, "jax")
    assert "intermediate" not in td.export_plan(llama, plan, "jax")
    ast.parse(td.export_plan(llama, sequence, "jax"))


@pytest.mark.parametrize("form", ["jax", "dtensor", "torchtitan", "deepspeed"])
def test_recomputation_is_not_left_out(llama: Any, form: str) -> None:
    step = td.train_step(llama, optimizer="adam", recompute="full")
    with pytest.raises(PlanError, match=r"DIST0241.*recomputation"):
        td.export_plan(step, _plan(step, "data_parallel", dp=2), form)


def test_jax_takes_axes_of_any_kind(llama: Any) -> None:
    """The error of the other formats names it as the remedy."""
    plan = td.Plan(mesh={"ep": 2}, rules={"norm.weight": "R"})
    assert "PartitionSpec" in td.export_plan(llama, plan, "jax")


def test_micro_batches_of_torchtitan() -> None:
    """Without stages they accumulate gradients; with stages their size is stated."""
    model = "zoo:gpt?size=tiny,layers=4"
    step, plan = _step(model, "pipeline:micro_batches=4", {"pp": 2}, batch=16)
    options = _options(td.export_plan(step, plan, "torchtitan"))
    assert options["parallelism.pipeline_parallel_microbatch_size"] == 4
    assert options["training.local_batch_size"] == options["training.global_batch_size"] == 16
    strategy = "pipeline:micro_batches=4+data_parallel"
    step, plan = _step(model, strategy, {"pp": 1, "dp": 2}, batch=16)
    options = _options(td.export_plan(step, plan, "torchtitan"))
    assert options["training.local_batch_size"] == 2
    assert options["training.global_batch_size"] == 16


def _source(package: str, *paths: str) -> str:
    """The sources of a module of an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    return "\n".join((folder / path).read_text() for path in paths)


def _fields(source: str) -> set[str]:
    """The annotated fields of all classes, and the values of string constants."""
    tree = ast.parse(source)
    names = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return names | {
        node.value for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }  # fmt: skip


def test_megatron_has_the_options() -> None:
    fields = _fields(
        _source("megatron.core", "model_parallel_config.py", "transformer/transformer_config.py")
    )
    of_trainer = {"micro-batch-size", "global-batch-size", "use-distributed-optimizer"}
    of_trainer |= {"num-distributed-optimizer-instances"}
    for *_, expected in OPTIONS:
        for option in expected.keys() - of_trainer:
            assert option.replace("-", "_") in fields


def test_torchtitan_has_the_options(llama: Any) -> None:
    fields = _fields(_source("torchtitan", "config/configs.py"))
    text = td.export_plan(llama, _plan(llama, "fsdp", dp=4), "torchtitan")
    for option in _options(text):
        assert option.partition(".")[2] in fields


def test_deepspeed_has_the_keys(llama: Any) -> None:
    words = _fields(
        _source("deepspeed", "runtime/constants.py", "runtime/tensor_parallel/config.py",
                "runtime/zero/config.py", "runtime/config.py")
    )  # fmt: skip
    plan = _plan(llama, "data_parallel+megatron", dp=2, tp=2)
    config = json.loads(td.export_plan(llama, plan, "deepspeed"))
    assert {"tensor_parallel", "zero_optimization", "autotp_size", "stage"} <= words
    assert set(config) <= words


REFUSED = [
    ("dtensor", "data_parallel+megatron:sequence=1", {"dp": 2, "tp": 2}, "sharded along"),
    ("dtensor", "context_parallel", {"cp": 2}, "sequence"),
    ("deepspeed", "context_parallel", {"cp": 2}, "sequence parallelism"),
    ("torchtitan", "data_parallel+context_parallel", {"dp": 2, "cp": 2}, "context parallelism"),
    ("megatron", "fsdp", {"dp": 2}, "ZeRO stage 3"),
    ("megatron", "tensor_parallel", {"tp": 2}, "Megatron-LM"),
]


@pytest.mark.parametrize(("form", "strategy", "mesh", "words"), REFUSED)
def test_what_a_format_cannot_express_is_refused(
    llama: Any, form: str, strategy: str, mesh: dict[str, int], words: str
) -> None:
    with pytest.raises(PlanError, match=words) as info:
        td.export_plan(llama, _plan(llama, strategy, **mesh), form)
    assert info.value.code == "DIST0241" and info.value.remedy


def test_placements_inside_of_layers_are_not_left_out(llama: Any) -> None:
    """A weight that a layer uses in parts, where ``fsdp`` gathers it, was exported as ``fsdp``."""
    step = td.train_step(llama, optimizer="adam")
    data = _plan(step, "fsdp", dp=2).to_dict()
    [rule] = [
        rule for rule in data["rules"]
        if rule.get("param") == "self_attn.o_proj.weight" and rule["function"] == "layer_forward"
    ]  # fmt: skip
    assert td.export_plan(step, data, "torchtitan")
    rule["placement"] = "S[1]"
    with pytest.raises(PlanError, match=r'DIST0241.*"self_attn.o_proj.weight" along "dp"'):
        td.export_plan(step, data, "torchtitan")


def test_weights_that_are_sharded_otherwise_are_named(llama: Any) -> None:
    plan = _plan(llama, "megatron", tp=2)
    rules = [rule for rule in plan.rules if rule.name != "layers.1.mlp.up_proj.weight"]
    other = td.Plan(plan.meshes, rules).to_dict()
    other["rules"].append({"param": "layers.1.mlp.up_proj.weight", "placement": "S[1]"})
    with pytest.raises(PlanError, match=r"layers\.1\.mlp\.up_proj\.weight.*dim 0"):
        td.export_plan(llama, other, "megatron")


def test_an_axis_that_shards_nothing_is_refused(llama: Any) -> None:
    with pytest.raises(PlanError, match='"ep"') as info:
        td.export_plan(llama, td.Plan(mesh={"ep": 2}, rules={"norm.weight": "R"}), "torchtitan")
    assert info.value.code == "DIST0241"


def test_the_command_writes_what_python_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuple(PLAN_FORMATS) == FORMATS
    model = ["export-plan", "zoo:llama?size=tiny,batch=8", "--strategy", "megatron"]
    words = [*model, "--mesh", "tp=2", "--form"]
    assert main([*words, "megatron"]) == 0
    mod = td.zoo.llama(size="tiny", batch=8)
    text = td.export_plan(mod, _plan(mod, "megatron", tp=2), "megatron")
    assert capsys.readouterr().out == text
    assert main([*words, "jax", "-o", str(tmp_path / "specs.py")]) == 0
    jax_text = td.export_plan(mod, _plan(mod, "megatron", tp=2), "jax")
    assert (tmp_path / "specs.py").read_text() == jax_text
    assert main([*words, "megatronn"]) == 2
    assert 'Did you mean "megatron"' in capsys.readouterr().err
    with pytest.raises(UsageError, match="DIST0152"):
        td.export_plan(mod, _plan(mod, "megatron", tp=2), "nemo")
    assert issubclass(PlanError, DistIRError)

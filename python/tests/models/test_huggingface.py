# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare decoders that are built from ``config.json`` with the classes of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_distir as td
from tests.models.drawn_weights import drawn_weights
from tests.quick_compilation import quick_machine
from tvm_distir.models import zoo
from tvm_distir.models.huggingface.config_reader import read_config
from tvm_distir.models.huggingface.weights import convert_weights
from tvm_distir.models.zoo import decoder_model
from tvm_distir.models.zoo.sizes import SIZES
from tvm_distir.support import ModelError

DATA = Path(__file__).parent / "transformers_data"
ENCODERS: dict[str, dict[str, int]] = {
    "bert": {"batch": 2, "seq": 12},
    "bert_classifier": {"batch": 2, "seq": 12},
    "t5": {"batch": 2, "seq": 12, "decoder_seq": 7},
    "t5_gated": {"batch": 2, "seq": 12, "decoder_seq": 7},
    "vit": {"batch": 2},
    "whisper": {"batch": 2, "seq": 7},
}
NAMES = sorted({path.stem for path in DATA.glob("*.json")} - set(ENCODERS))


def _case(name: str) -> tuple[dict[str, Any], Any, Any]:
    about = json.loads((DATA / f"{name}.json").read_text())
    arrays = np.load(DATA / f"{name}.npz")
    return about, arrays["ids"], arrays["logits"]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    about, ids, logits = _case(name)
    config = read_config(about["config"], name, {"batch": 2, "seq": 12, "dtype": "float32"})
    weights = convert_weights(config, drawn_weights(about["shapes"]))
    mod = decoder_model.build(config)
    names = [str(p.name) for p in mod["main"].params][1:]
    assert sorted(names) == sorted(weights)
    out = _logits(mod, ids, weights)
    np.testing.assert_allclose(out, logits, rtol=2e-5, atol=2e-5 * abs(logits).max())


@pytest.mark.parametrize("name", ENCODERS)
def test_models_with_an_encoder_are_those_of_transformers(name: str) -> None:
    about = json.loads((DATA / f"{name}.json").read_text())
    arrays = np.load(DATA / f"{name}.npz")
    config = read_config(about["config"], name, ENCODERS[name])
    weights = convert_weights(config, drawn_weights(about["shapes"]))
    mod = zoo.build_config(config)
    params = [str(p.name) for p in mod["main"].params]
    count = int(mod["main"].attrs["num_input"])
    assert sorted(params[count:]) == sorted(weights)
    values = [arrays[key] for key in arrays.files if key != "logits"]
    assert len(values) == count
    result = _run(mod, [*values, *(weights[key] for key in params[count:])])
    expected = arrays["logits"]
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5 * abs(expected).max())


def test_a_key_that_changes_the_graph_is_refused_by_name() -> None:
    about, _, _ = _case("llama")
    with pytest.raises(ModelError, match=r"DIST0334.*not known: clip_qkv, logit_scale"):
        read_config({**about["config"], "clip_qkv": 8, "logit_scale": 0.1}, "config.json")
    with pytest.raises(ModelError, match=r"DIST0334.*mlp_bias=True"):
        read_config({**about["config"], "mlp_bias": True}, "config.json")
    with pytest.raises(ModelError, match=r'DIST0334.*"lama".*Did you mean "llama"'):
        read_config({**about["config"], "model_type": "lama"}, "config.json")
    with pytest.raises(ModelError, match=r"DIST0334.*hidden_size is missing"):
        read_config({"model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 1}, "x")


def test_a_wrong_number_is_refused_by_name() -> None:
    about, _, _ = _case("llama3")
    config = about["config"]
    with pytest.raises(ModelError, match=r"DIST0332 config\.json: batch='many' is not an integer"):
        read_config(config, "config.json", {"batch": "many"})
    with pytest.raises(ModelError, match=r"DIST0334.*layers is not an integer: 2\.5"):
        read_config({**config, "num_hidden_layers": 2.5}, "config.json")
    scaling = {k: v for k, v in config["rope_parameters"].items() if k != "low_freq_factor"}
    with pytest.raises(ModelError, match=r"DIST0334.*low_freq_factor.*not a number: None"):
        read_config({**config, "rope_parameters": scaling}, "config.json")


def test_a_tensor_of_another_model_is_refused() -> None:
    about, _, _ = _case("llama")
    config = read_config(about["config"], "llama")
    with pytest.raises(ModelError, match=r"DIST0335 model\.layers\.0\.mlp\.lora_a"):
        convert_weights(config, {"model.layers.0.mlp.lora_a": np.zeros(3)})


def _written(folder: Path, name: str) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(_case(name)[0]["config"]))
    return path


def test_a_model_is_a_config_file_or_its_folder(tmp_path: Path) -> None:
    path = _written(tmp_path, "qwen3")
    renamed = tmp_path / "sizes.json"  # known by its model_type
    renamed.write_bytes(path.read_bytes())
    for spec in (f"{path}?batch=4,seq=8", f"{tmp_path}?batch=4,seq=8", f"{renamed}?batch=4,seq=8"):
        model = td.load_model(spec)
        assert model.kind == "huggingface"
        ids = model.mod["main"].params[0].ty
        assert [int(n) for n in ids.shape] == [4, 8]
    assert int(td.load_model(str(path), batch=2).mod["main"].params[0].ty.shape[0]) == 2
    with pytest.raises(ModelError, match=r'DIST0334.*no key "sequence"'):
        td.load_model(f"{path}?sequence=8")


def test_published_names_are_the_sizes_of_the_zoo() -> None:
    mod = td.load_model("hf:Qwen/Qwen3-8B?batch=2,seq=16").mod
    zoo = td.load_model("zoo:qwen3?size=8b,batch=2,seq=16").mod
    assert mod.script() == zoo.script()
    assert td.load_model("hf:qwen3-8b?batch=2,seq=16").mod.script() == zoo.script()
    with pytest.raises(ModelError, match=r"DIST0330 hf:Qwen3-9B.*Did you mean"):
        td.load_model("hf:Qwen3-9B")


PUBLISHED_BILLIONS = {
    ("mistral", "7b"): 7.25, ("mixtral", "8x7b"): 46.7, ("mixtral", "8x22b"): 140.6,
    ("llama3", "3.1-8b"): 8.03, ("llama3", "3.1-70b"): 70.6, ("llama3", "3.1-405b"): 405.9,
    ("llama3", "3.2-1b"): 1.24, ("llama3", "3.2-3b"): 3.21, ("qwen2", "7b"): 7.62,
    ("qwen2", "72b"): 72.7, ("qwen3", "8b"): 8.19, ("qwen3", "32b"): 32.8,
    ("qwen3", "30b-a3b"): 30.5, ("qwen3", "235b-a22b"): 235.1, ("gemma", "2-9b"): 9.24,
    ("gemma", "2-27b"): 27.2, ("phi", "3-mini"): 3.82, ("phi", "4"): 14.7,
    ("olmo", "2-7b"): 7.30, ("olmo", "2-13b"): 13.7,
    ("llama3", "3-8b"): 8.03, ("llama3", "3-70b"): 70.6, ("deepseek", "v2"): 236.0,
    ("deepseek", "v2-lite"): 15.7, ("deepseek", "v3"): 671.0, ("gpt_oss", "20b"): 20.9,
    ("gpt_oss", "120b"): 116.8,
}  # fmt: skip
"""Billions of parameters as the model cards and reports of the families state them."""


@pytest.mark.parametrize(("family", "size"), PUBLISHED_BILLIONS)
def test_sizes_have_the_published_number_of_parameters(family: str, size: str) -> None:
    assert size in SIZES[family]
    mod = td.load_model(f"zoo:{family}?size={size},batch=1,seq=64").mod
    count = sum(int(np.prod([int(n) for n in p.ty.shape])) for p in list(mod["main"].params)[1:])
    assert count / 1e9 == pytest.approx(PUBLISHED_BILLIONS[family, size], rel=0.006)


def _logits(mod: Any, ids: Any, weights: Any) -> Any:
    names = [str(p.name) for p in mod["main"].params][1:]
    return _run(mod, [ids, *(weights[key] for key in names)])


def _run(mod: Any, values: list[Any]) -> Any:
    inputs = [np.ascontiguousarray(value) for value in values]
    run = quick_machine(mod)["main"]
    return run(*[tvm.runtime.tensor(value) for value in inputs]).numpy()


def test_a_permutation_routes_tokens_as_products_with_one_hot_tables() -> None:
    """Both drop the same tokens, and compute the same logits."""
    keys = "size=tiny,layers=1,capacity_factor=0.3"
    one_hot = td.load_model(f"zoo:moe?{keys}").mod
    permuted = td.load_model(f"zoo:moe?{keys},dispatch=permutation").mod
    shapes = {str(p.name): [int(n) for n in p.ty.shape] for p in list(permuted["main"].params)[1:]}
    weights = drawn_weights(shapes)
    ids = np.random.default_rng(1).integers(0, 512, (4, 16)).astype("int32")
    expected = _logits(one_hot, ids, weights)
    np.testing.assert_allclose(_logits(permuted, ids, weights), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("model", "strategy", "mesh"),
    [
        ("deepseek", "expert_parallel", {"ep": 2}),
        (
            "mixtral?size=tiny,capacity_factor=0.5",
            "data_parallel+expert_parallel",
            {"dp": 2, "ep": 2},
        ),
        ("gpt_oss", "expert_parallel", {"ep": 2}),
        ("gemma", "data_parallel+megatron", {"dp": 2, "tp": 2}),
        ("qwen3", "context_parallel", {"cp": 2}),
    ],
)
def test_a_distributed_decoder_computes_the_same(
    model: str, strategy: str, mesh: dict[str, int]
) -> None:
    spec = model if "?" in model else f"{model}?size=tiny"
    mod = td.load_model(f"zoo:{spec}").mod
    plan = td.planning.make_plan(mod, strategy, mesh)
    assert td.verify(mod, plan).equal


@pytest.mark.parametrize("keys", ["", "entry=serve,past=7,page=4,"])
@pytest.mark.parametrize("name", ["granite", "cohere", "qwen2_moe", "gpt2", "glm4", "gpt_neox"])
def test_a_distributed_configuration_computes_the_same(
    tmp_path: Path, name: str, keys: str
) -> None:
    """A step of two samples and a serving step, with norms and factors of their own."""
    mod = td.load_model(f"{_written(tmp_path, name)}?{keys}batch=2,seq=4,dtype=float32").mod
    assert td.verify(mod, td.planning.make_plan(mod, "megatron", {"tp": 2})).equal


def test_a_training_step_of_experts_equals_one_device() -> None:
    step = td.train_step(td.load_model("zoo:mixtral?size=tiny,layers=1").mod, optimizer="sgd")
    assert td.verify(step, td.planning.make_plan(step, "data_parallel", {"dp": 2})).equal


def test_layers_of_experts_keep_the_batch_sharded() -> None:
    """Under data parallelism a layer moves nothing; gradients are summed."""
    mod = td.load_model("zoo:mixtral?size=8x7b,layers=2,batch=8,seq=1024").mod
    step = td.train_step(mod, optimizer="sgd")
    dist = td.distribute(step, td.planning.make_plan(step, "data_parallel", {"dp": 2}))
    layers = {name: fn for name, fn in td.export(dist).functions.items() if "layer" in name}
    assert len(layers) >= 2
    kinds = {op.collective for fn in layers.values() for op in fn.ops}
    assert kinds <= {"", "all_reduce"}


def test_experts_of_a_configuration_have_the_slots_of_a_balanced_load(tmp_path: Path) -> None:
    """Without weights: ``top_k`` rows per token, as steps that drop nothing compute; or all."""
    about, _, _ = _case("mixtral")
    (tmp_path / "config.json").write_text(json.dumps(about["config"]))
    batch, seq = 2, 8
    experts, top_k = (about["config"][f"num_{key}"] for key in ("local_experts", "experts_per_tok"))

    def rows(keys: str) -> set[int]:
        mod = td.load_model(f"{tmp_path}?batch={batch},seq={seq}{keys}").mod
        shapes = [
            [int(n) for n in b.var.ty.shape]
            for fn in mod.functions.values()
            for block in fn.body.blocks
            for b in block.bindings
            if str(b.var.name) == "gate"
        ]
        assert all(shape[0] == experts for shape in shapes)
        return {shape[1] for shape in shapes}

    assert rows("") == {batch * seq * top_k // experts}
    assert rows(",capacity_factor=0") == {batch * seq}


def _saved(folder: Path, name: str, per_expert: bool = False) -> tuple[Any, dict[str, Any]]:
    """Save the weights of a case in two files with an index; return them and its config."""
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    about, _, _ = _case(name)
    state = drawn_weights(about["shapes"])
    if per_expert:
        for key in [key for key in state if key.endswith("experts.gate_up_proj")]:
            stem, value = key.removesuffix(".gate_up_proj"), state.pop(key)
            down = state.pop(f"{stem}.down_proj")
            for i, (both, last) in enumerate(zip(value, down, strict=True)):
                gate, up = np.split(both, 2)
                for part, single in (("w1", gate), ("w3", up), ("w2", last)):
                    state[f"{stem}.{i}.{part}.weight"] = np.ascontiguousarray(single)
    names = sorted(state)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, keys in halves.items():
        safetensors.save_file({key: state[key] for key in keys}, folder / file)
    weight_map = {key: file for file, keys in halves.items() for key in keys}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(about["config"]))
    return about, state


@pytest.mark.parametrize(
    ("name", "per_expert"), [("llama", False), ("phi3", False), ("mixtral", True)]
)
def test_weights_beside_a_config_are_read(tmp_path: Path, name: str, per_expert: bool) -> None:
    about, _ = _saved(tmp_path, name, per_expert)
    _, ids, logits = _case(name)
    model = td.load_model(f"{tmp_path}?batch=2,seq=12,dtype=float32")
    result = _logits(model.mod, ids, model.read_weights())
    np.testing.assert_allclose(result, logits, rtol=2e-5, atol=2e-5 * abs(logits).max())
    half = td.load_model(f"{tmp_path}?batch=2,seq=12,dtype=bfloat16").read_weights()
    assert {str(value.dtype) for value in half.values()} == {"bfloat16"}
    assert about["config"]["model_type"] == name


def test_a_broken_checkpoint_is_refused(tmp_path: Path) -> None:
    _saved(tmp_path, "llama")
    (tmp_path / "b.safetensors").write_bytes(b"none")
    with pytest.raises(ModelError, match=r"DIST0315.*b\.safetensors"):
        td.load_model(str(tmp_path)).read_weights()

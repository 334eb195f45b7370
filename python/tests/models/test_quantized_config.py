# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``quantization_config`` of a ``config.json``: its types are those of the weights, or refused."""

from __future__ import annotations

import inspect
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command import main
from tvm_distir.models import stored_weights
from tvm_distir.models.huggingface.config_reader import read_config
from tvm_distir.models.huggingface.quantized_config import METHODS
from tvm_distir.performance.fusion.weight_kinds import KINDS, weight_quantization
from tvm_distir.support import ModelError, UsageError

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "hidden_act": "silu",
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip
BLOCKS: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
CT = "compressed-tensors"


def group(**weights: Any) -> dict[str, Any]:
    return {"weights": weights, "input_activations": weights, "targets": ["Linear"]}


def compressed(weights: dict[str, Any], activations: Any = None, **more: Any) -> dict[str, Any]:
    named = {"g": {"weights": weights, "input_activations": activations, "targets": ["Linear"]}}
    return {"quant_method": CT, "config_groups": named, "ignore": ["lm_head"], **more}


INT4 = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float"}
CASES: list[tuple[dict[str, Any], str, float, str]] = [
    (BLOCKS, "fp8, blocks of 128 x 128", 8 + 32 / 128**2, "float8_block"),
    ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", 8, "float8"),
    ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fbgemm_fp8, fp8", 8, "float8"),
    ({"quant_method": "mxfp4"}, "mxfp4", 4 + 8 / 32, ""),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
     "awq, int4, groups of 128", 4 + (16 + 4) / 128, ""),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "gptq, int8", 8, ""),
    ({"quant_method": "gptq", "bits": 3, "group_size": 64}, "int3", 3 + 19 / 64, ""),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
     "nf4", 4 + 32 / 64, ""),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
      "bnb_4bit_use_double_quant": True}, "nf4", 4 + 8 / 64 + 32 / (64 * 256), ""),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8, ""),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
     "modelopt, nvfp4", 4 + 8 / 16, "nvfp4"),
    ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "exclude_modules": []}},
     "fp8", 8, "float8"),
    ({"quant_method": "torchao", "quant_type": {"default": {
        "_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}}}, "int4", 4 + 20 / 64, ""),
    ({"quant_method": "torchao", "quant_type": "float8_dynamic_activation_float8_weight"},
     "fp8", 8, "float8"),
    (compressed(FP8, FP8), f"{CT}, fp8", 8, "float8"),
    (compressed(FP8), f"{CT}, fp8", 8, ""),
    (compressed(INT4), "groups of 32", 4 + 16 / 32, ""),
    (compressed({"num_bits": 8, "type": "int"}, FP8), "int8 with int8", 8, "int8"),
    (compressed({"num_bits": 4, "type": "float"}, FP8, format="nvfp4-pack-quantized"),
     "nvfp4", 4.5, "nvfp4"),
]  # fmt: skip


def written(folder: Path, quantization: Any, keys: str = "", **more: Any) -> str:
    """Write a ``config.json``, and return its MODEL string."""
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, "quantization_config": quantization, **more}))
    return f"{path}{keys}"


@pytest.mark.quick
@pytest.mark.parametrize(("quantization", "words", "bits", "dtype"), CASES)
def test_types_are_read(
    tmp_path: Path, quantization: dict[str, Any], words: str, bits: float, dtype: str
) -> None:
    """The bits of an element count its scales, by hand."""
    stored = stored_weights(written(tmp_path, quantization))
    assert stored is not None
    assert words in stored.words
    chosen = weight_quantization(stored.text, "test")
    assert (chosen.bits, chosen.dtype) == (pytest.approx(bits, rel=1e-6), dtype)
    assert stored.text.partition(",")[0] in KINDS or stored.text.startswith("int")
    assert read_config({**CONFIG, "quantization_config": quantization}, "m") == read_config(
        CONFIG, "m"
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "mystery"}, {"bits": 4}, "fp8", {"quant_method": "awq"},
        compressed(INT4) | {"config_groups": {}},
        {"quant_method": "modelopt", "quant_algo": "FP3"}, {"quant_method": ["fp8"]},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": CT, "config_groups": {"a": group(**INT4), "b": group(**FP8)}},
    ],
)  # fmt: skip
def test_weights_of_an_unknown_type_are_refused(tmp_path: Path, quantization: Any) -> None:
    with pytest.raises(ModelError, match=r"DIST0334 .*cannot be told.*--quantize"):
        stored_weights(written(tmp_path, quantization))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({**BLOCKS, "expert_dtype": "fp4"}, "expert_dtype='fp4'"),
        ({**BLOCKS, "sparsity": 2}, "sparsity=2"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:a": {"bits": 8}}}, "dynamic="),
        (compressed(INT4, sparsity_config={"format": "dense"}), "sparsity_config="),
    ],
)
def test_a_key_that_changes_bytes_is_refused_by_name(
    tmp_path: Path, quantization: Any, name: str
) -> None:
    with pytest.raises(ModelError, match=f"DIST0334 .*bytes of weights: {re.escape(name)}"):
        stored_weights(written(tmp_path, quantization))


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_an_unknown_dtype_is_refused(key: str) -> None:
    plain = {name: value for name, value in CONFIG.items() if name != "torch_dtype"}
    with pytest.raises(ModelError, match=r"DIST0332 .*float8_e4m3fn"):
        read_config({**plain, key: "float8_e4m3fn"}, "m.json")


def test_a_dtype_of_32_bits_beside_quantized_weights_is_refused(tmp_path: Path) -> None:
    model = written(tmp_path, BLOCKS, torch_dtype="float32")
    with pytest.raises(ModelError, match=r"DIST0334 .*others are float32.*dtype=bfloat16"):
        stored_weights(model)
    assert stored_weights(f"{model}?dtype=bfloat16") is not None


def test_types_of_a_multimodal_model_hold_for_its_decoder(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    inner = {name: value for name, value in CONFIG.items() if name != "torch_dtype"}
    outer = {"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": BLOCKS}
    path.write_text(json.dumps({**outer, "text_config": inner}))
    stored = stored_weights(str(path))
    assert stored is not None
    assert stored.words.startswith("fp8")


def test_the_file_of_modelopt_is_read_beside_a_config(tmp_path: Path) -> None:
    inner = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    model = written(tmp_path, None)
    assert stored_weights(model) is None
    content = {"producer": {"name": "modelopt"}, "quantization": inner}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    stored = stored_weights(model)
    assert stored is not None
    assert stored.source == "stated by hf_quant_config.json"


def param_bytes(model: str, **options: Any) -> int:
    result = td.analyze(
        model, strategy="data_parallel", mesh={"dp": 1}, system="h100", advice="bounds", **options
    )
    return result.report.devices[0].param_bytes


SIZES = {"q": 64 * 64, "k": 64 * 64, "v": 64 * 64, "o": 64 * 64,
         "gate": 64 * 128, "up": 64 * 128, "down": 64 * 128}  # fmt: skip
HEAD = 256 * 64
KEYS = "?batch=1,seq=16"


def expected(bits: float, skipped: dict[str, float], head: bool = False) -> float:
    """Return the bytes that the weights take less than in 16 bits, with shares that stay."""
    saved = [2 * n * (1 - skipped.get(name, 0)) for name, n in SIZES.items()]
    return (sum(saved) + head * HEAD) * (16 - bits) / 8


ATTENTION = dict.fromkeys("qkvo", 1.0)
LISTS: list[tuple[dict[str, Any], dict[str, float], bool]] = [
    (BLOCKS, {}, False),
    ({**BLOCKS, "modules_to_not_convert": ["lm_head", "model.layers.*.self_attn"]}, ATTENTION,
     False),
    ({**BLOCKS, "modules_to_not_convert": ["down_proj"]}, {"down": 1}, False),
    ({**BLOCKS, "modules_to_not_convert": ["model.layers.1"]}, dict.fromkeys(SIZES, 0.5), False),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*.self_attn*"]}, ATTENTION,
     True),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head",
      "model.layers.0.mlp.gate_up_proj"]}, {"gate": 0.5, "up": 0.5}, False),
    (compressed(FP8, FP8, ignore=["lm_head", "re:.*self_attn.*", "model.layers.0.mlp.down_proj"]),
     {**ATTENTION, "down": 0.5}, False),
    ({"quant_method": CT, "ignore": [], "config_groups": {"g": {
        "weights": FP8, "input_activations": FP8, "targets": ["re:.*mlp.*"]}}}, ATTENTION, False),
]  # fmt: skip


@pytest.mark.parametrize(("quantization", "skipped", "head"), LISTS)
def test_lists_of_modules_are_honoured(
    tmp_path: Path, quantization: dict[str, Any], skipped: dict[str, float], head: bool
) -> None:
    """Of each product the bytes by hand; in layers that differ a weight has its mean bits."""
    model = written(tmp_path, quantization, KEYS)
    bits = 8 + 32 / 128**2 if quantization is BLOCKS or "weight_block_size" in quantization else 8
    saved = param_bytes(model, quantize="none") - param_bytes(model)
    assert saved == pytest.approx(expected(bits, skipped, head), abs=2 * len(SIZES) + 1)


def test_options_override_the_checkpoint(tmp_path: Path) -> None:
    model = written(tmp_path, BLOCKS, KEYS)
    plain, stored = param_bytes(model, quantize="none"), param_bytes(model)
    assert plain - stored == pytest.approx(expected(8, {}), rel=1e-3)
    assert param_bytes(model, quantize="int4") < stored
    assert param_bytes(model, kernels="serving:weights=mxfp4") < stored
    unknown = written(tmp_path, {"quant_method": "mystery"}, KEYS)
    assert param_bytes(unknown, quantize="none") == plain
    with pytest.raises(UsageError, match=r"DIST0152 .*fp8"):
        param_bytes(model, quantize="fp9")


def test_types_that_a_device_does_not_multiply_are_converted(tmp_path: Path) -> None:
    """A100 has no products of float8: the bytes are those of float8, the arithmetic is not."""
    model = written(tmp_path, BLOCKS, KEYS)
    results = [
        td.analyze(model, strategy="data_parallel", mesh={"dp": 1}, system=s, advice="bounds")
        for s in ("a100", "h100")
    ]
    assert len({r.report.devices[0].param_bytes for r in results}) == 1
    assert "dtype=operands" in str(results[0].study.kernels)
    assert "dtype=operands" not in str(results[1].study.kernels)


def test_a_training_step_trains_in_the_type_of_the_model(tmp_path: Path) -> None:
    model = written(tmp_path, BLOCKS, KEYS)
    options: dict[str, Any] = {"strategy": "data_parallel", "mesh": {"dp": 1}, "system": "h100"}
    result = td.analyze(model, train=True, **options)
    assert "they are trained in bfloat16" in result.summary
    plain = td.analyze(written(tmp_path, None, KEYS), train=True, **options)
    assert result.peak_memory_bytes == plain.peak_memory_bytes
    with pytest.raises(UsageError, match=r"DIST0152 .*training step"):
        td.analyze(model, train=True, quantize="fp8", **options)


@pytest.mark.filterwarnings("default")
def test_commands_state_the_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, BLOCKS)
    model = [f"{path}?batch=4,seq=16", "--mesh", "tp=2"]
    plan = ["--strategy", "megatron", "--system", "h100"]
    serving = ["--system", "h100-serving", "--workload", "closed:2,in=16,out=4"]
    assert main(["analyze", *model, *plan]) == 0
    assert "weights of products are fp8, blocks of 128 x 128" in capsys.readouterr().out
    assert main(["verify", *model, "--strategy", "megatron"]) == 0
    assert re.search("warning: weights of products are fp8", capsys.readouterr().err)
    assert main(["serve-analyze", path, *model[1:], *serving]) == 0
    stored = capsys.readouterr().out
    assert "weights of products: fp8-block, 8.002 bits" in stored
    for weights, same in (("fp8-block", True), ("none", False)):
        assert main(["serve-analyze", path, *model[1:], *serving, "--quantize", weights]) == 0
        assert (capsys.readouterr().out == stored) == same
    assert main(["search", model[0], "--devices", "2", "--system", "h100"]) == 0
    assert "weights of products: fp8-block" in capsys.readouterr().out


def test_searches_take_the_types(tmp_path: Path) -> None:
    model = written(tmp_path, BLOCKS, "?seq=16,batch=2")
    results = [td.search(model, 1, "h100", quantize=kind) for kind in (None, "fp8-block", "none")]
    peaks = [result.plans[0].row.peak_bytes for result in results]
    assert peaks[0] == peaks[1] < peaks[2]
    grid = {"tp": [1]}
    rows = [
        td.sweep(model, grid, "h100", quantize=kind).to_dicts()[0]["peak_memory_bytes"]
        for kind in (None, "fp8-block", "none")
    ]
    assert rows[0] == rows[1] < rows[2]


def test_keys_of_transformers_are_known() -> None:
    """Each argument of its classes is read, neutral, skipped or required."""
    module = pytest.importorskip("transformers.utils.quantization_config", reason="huggingface")
    from tvm_distir.models.huggingface.quantized_config import _READ

    names = {"fp8": "FineGrainedFP8Config", "fbgemm_fp8": "FbgemmFp8Config", "awq": "AwqConfig",
             "gptq": "GPTQConfig", "bitsandbytes": "BitsAndBytesConfig", "mxfp4": "Mxfp4Config",
             CT: "CompressedTensorsConfig", "torchao": "TorchAoConfig", "quanto": "QuantoConfig",
             "eetq": "EetqConfig", "auto-round": "AutoRoundConfig"}  # fmt: skip
    for method, name in names.items():
        data = METHODS[method]
        known = {*_READ, *data.get("neutral", ()), *data.get("skip", ()), *data.get("require", ()),
                 "modules_to_not_convert", "self", "kwargs"}  # fmt: skip
        assert set(inspect.signature(getattr(module, name).__init__).parameters) <= known, method
    assert math.isclose(KINDS["nf4"]["bits"], 4.5)

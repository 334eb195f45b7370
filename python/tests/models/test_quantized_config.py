# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``quantization_config`` of a ``config.json``: named where it is not applied, or refused."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command import main
from tvm_distir.models.huggingface.config_reader import read_config
from tvm_distir.models.huggingface.quantized_config import PROFILES
from tvm_distir.performance import profile_names
from tvm_distir.support import ModelError

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "hidden_act": "silu",
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GROUP: dict[str, Any] = {"num_bits": 8, "type": "float"}
METHODS: list[tuple[dict[str, Any], str]] = [
    (BLOCKS, r"fp8, blocks of 128 x 128.*bfloat16 unless --kernels serving-fp8-block"),
    ({"quant_method": "fp8"}, "--quantize fp8,"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq, int4, groups of 128.*int4,"),
    ({"quant_method": "gptq", "bits": 8}, "fused-int8-weights is given"),
    ({"quant_method": "gptq", "bits": 3}, "int3.*no kernel profile"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
    ({"quant_method": "mxfp4"}, r"\(mxfp4\).*no kernel profile has this type"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "--quantize nvfp4,"),
    ({"quant_method": "torchao", "quant_type": {"default": "int4_weight_only"}}, "int4,"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": GROUP}}}, "fp8,"),
    ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
      "config_groups": {"g": {"weights": {**GROUP, "num_bits": 4}}}}, "nvfp4,"),
]  # fmt: skip


@pytest.mark.parametrize(("quantization", "words"), METHODS)
def test_quantization_is_named(quantization: dict[str, Any], words: str) -> None:
    with pytest.warns(UserWarning, match=f"m.json: quantization_config .*{words}"):
        config = read_config({**CONFIG, "quantization_config": quantization}, "m.json")
    assert config == read_config(CONFIG, "m.json")


def test_named_profiles_exist() -> None:
    assert set(PROFILES.values()) <= set(profile_names())


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "mystery"}, {"bits": 4}, "fp8", {"quant_method": "awq"},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {"quant_method": "modelopt", "quant_algo": "FP3"}, {"quant_method": ["fp8"]},
    ],
)  # fmt: skip
def test_weights_of_an_unknown_type_are_refused(quantization: Any) -> None:
    with pytest.raises(ModelError, match=r"DIST0334 .*cannot be told.*weights of bfloat16"):
        read_config({**CONFIG, "quantization_config": quantization}, "m.json")


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_an_unknown_dtype_is_refused(key: str) -> None:
    plain = {name: value for name, value in CONFIG.items() if name != "torch_dtype"}
    with pytest.raises(ModelError, match=r"DIST0332 .*float8_e4m3fn"):
        read_config({**plain, key: "float8_e4m3fn"}, "m.json")


def test_types_of_a_multimodal_model_hold_for_its_decoder() -> None:
    """Its decoder was read as float32, without a word on its quantization."""
    inner = {name: value for name, value in CONFIG.items() if name != "torch_dtype"}
    whole = {"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": BLOCKS}
    with pytest.warns(UserWarning, match="fp8"):
        config = read_config({**whole, "text_config": inner}, "m.json")
    assert config == read_config(CONFIG, "m.json")


@pytest.mark.filterwarnings("default")
def test_commands_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "quantization_config": BLOCKS}))
    model = [f"{path}?batch=4,seq=16", "--mesh", "tp=2"]
    plan = ["--strategy", "megatron", "--system", "h100"]
    serving = ["--system", "h100-serving", "--workload", "closed:2,in=16,out=4"]
    commands = [["analyze", *model, *plan], ["verify", *model, "--strategy", "megatron"],
                ["serve-analyze", str(path), *model[1:], *serving]]  # fmt: skip
    for words in commands:
        assert main([*words, "--json"]) == 0
        shown = capsys.readouterr()
        assert re.search("warning: .*quantization_config", shown.err)
        assert shown.err.count("quantization_config") == 1
        assert any("fp8-block" in line for line in json.loads(shown.out)["warnings"])
    assert main(commands[0]) == 0
    assert (
        "quantization_config (fp8, blocks of 128 x 128) is not applied" in capsys.readouterr().out
    )


def test_the_named_option_applies_it(tmp_path: Path) -> None:
    """Weights take fewer bytes with the profile that the warning names."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "quantization_config": BLOCKS}))

    def weights(kernels: str | None) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = td.analyze(
                f"{path}?batch=1,seq=16", strategy="data_parallel", mesh={"dp": 1},
                system="h100-serving", kernels=kernels,
            )  # fmt: skip
        return result.report.devices[0].param_bytes

    assert weights(PROFILES["fp8-block"]) < 0.8 * weights(None)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Configurations of unknown families are exported from their class of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_distir as td
from tests.models.drawn_weights import drawn_weights
from tvm_distir.models import stored_weights
from tvm_distir.models.huggingface import class_export
from tvm_distir.support import ModelError

torch = pytest.importorskip("torch", reason="the extra torch")
transformers = pytest.importorskip("transformers", reason="transformers")

from tvm_distir.models.huggingface.class_inputs import example_inputs  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
KINDS = {
    "SmolLM3": {},
    "Cohere2": {"sliding_window": 5},
    "OPT": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "Phi": {},
}


def written(folder: Path, kind: str, **changes: Any) -> tuple[str, Any]:
    """Write the ``config.json`` of a class, and return its path and its model."""
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **KINDS[kind], **changes})
    config._attn_implementation = "eager"
    path = folder / "config.json"
    path.write_text(config.to_json_string(use_diff=False))
    return str(path), getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_logits_on_two_devices_are_those_of_the_class(tmp_path: Path, kind: str) -> None:
    path, model = written(tmp_path, kind)
    drawn = drawn_weights({name: list(w.shape) for name, w in model.named_parameters()})
    model.load_state_dict({name: torch.from_numpy(w) for name, w in drawn.items()}, strict=False)
    ids = np.random.default_rng(0).integers(1, 64, (2, 12))
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    mod = td.load_model(f"{path}?batch=2,seq=12").mod
    known = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    values = {name: known[name].detach().numpy() for name in names[1:]}
    plan = td.planning.make_plan(mod, "megatron", {"tp": 2})
    (result,) = td.run(td.distribute(mod, plan), {names[0]: ids, **values})
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5 * abs(expected).max())


OTHERS: dict[str, tuple[dict[str, Any], list[str], int]] = {
    "DeiTModel": ({"image_size": 16, "patch_size": 8}, ["pixel_values"], 2),
    "BartForConditionalGeneration": (
        {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_layers": 1,
         "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
        ["input_ids", "decoder_input_ids"], 2,
    ),
    "CLIPModel": (
        {part: {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
                "intermediate_size": 48, "vocab_size": 64, "image_size": 16, "patch_size": 8}
         for part in ("text_config", "vision_config")},
        ["input_ids", "pixel_values"], 8,
    ),
    "ParakeetEncoder": (
        {"num_mel_bins": 16, "subsampling_conv_channels": 8}, ["input_features"], 1,
    ),
}  # fmt: skip
"""Keys of a class, its inputs, and how many tensors it returns."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OTHERS)
def test_classes_of_other_inputs_and_results(tmp_path: Path, kind: str) -> None:
    """Images, features of sound, two kinds of data, and encoders beside decoders."""
    changes, inputs, count = OTHERS[kind]
    sizes = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    owner = getattr(transformers, kind)
    config = owner.config_class(**{**sizes, "num_hidden_layers": 1, **changes})
    config._attn_implementation, config.architectures = "eager", [kind]
    path = tmp_path / "config.json"
    path.write_text(config.to_json_string(use_diff=False))
    torch.manual_seed(0)
    model = owner(config).eval()
    mod = td.load_model(f"{path}?batch=2,seq=16").mod
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    assert names[: len(inputs)] == inputs
    rng, values = np.random.default_rng(0), {}
    for name, var in zip(inputs, mod["main"].params):
        shape = [int(size) for size in var.ty.shape]
        is_int = "int" in str(var.ty.dtype)
        values[name] = rng.integers(3, 64, shape) if is_int else rng.normal(size=shape)
        values[name] = values[name].astype(str(var.ty.dtype))
    with torch.no_grad():
        given = {name: torch.from_numpy(value) for name, value in values.items()}
        options = {"use_cache": False} if "decoder_input_ids" in inputs else {}
        expected = torch.utils._pytree.tree_leaves(model(**given, **options))
    known = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    values |= {name: known[name].detach().numpy() for name in names[len(inputs) :]}
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 2})
    results = td.run(td.distribute(mod, plan), values)
    tensors = [leaf.numpy() for leaf in expected if isinstance(leaf, torch.Tensor)]
    assert len(results) == len(tensors) == count
    for a, b in zip(results, tensors, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * abs(b).max())


@pytest.mark.filterwarnings("ignore")
def test_a_configuration_is_analyzed_with_its_layers_as_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time the module is read from the cache."""
    path, _ = written(tmp_path, "SmolLM3", num_hidden_layers=6)
    options: dict[str, Any] = {"strategy": "megatron", "mesh": {"tp": 2}, "system": "h100"}
    result = td.analyze(f"{path}?seq=16", batch=4, **options)
    assert len(result.study.source.mod.get_global_vars()) > 1
    monkeypatch.setattr(class_export, "_exported", lambda *_: pytest.fail("it is exported again"))
    assert td.load_model(f"{path}?seq=16", batch=4).mod is not None


@pytest.mark.quick
def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, "model_type": "lama"}))
    with pytest.raises(ModelError, match=r'DIST0334 .*cannot export the class.*"llama"'):
        td.load_model(str(path))
    path.write_text(json.dumps({**SIZES, "model_type": "smollm3"}))
    with pytest.raises(ModelError, match=r'DIST0334 .*no key "heads".*batch, seq'):
        td.load_model(f"{path}?heads=8")
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    path.write_text(json.dumps({**SIZES, "model_type": "smollm3", "quantization_config": fp8}))
    with pytest.raises(ModelError, match=r"DIST0334 .*of smollm3 are not known.*--quantize"):
        stored_weights(str(path))
    monkeypatch.setattr(class_export, "_MISSING", ["transformers"])
    with pytest.raises(ModelError, match=r'DIST0334 .*"smollm3" is not known.*distir\[torch\]'):
        td.load_model(str(path))


@pytest.mark.parametrize("key", ["layers=abc", "seq=0", "batch=-1"])
def test_sizes_that_are_no_numbers_are_refused(tmp_path: Path, key: str) -> None:
    path, _ = written(tmp_path, "OPT")
    with pytest.raises(ModelError, match=r"DIST0334 .*a positive number is needed"):
        td.load_model(f"{path}?{key}")


class _Sound(torch.nn.Module):
    """A model of sound that expects one channel, or features of stacked frames."""

    main_input_name = "input_values"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(1, 2, 10, stride=10)
        self.linear = torch.nn.Linear(width, 4)
        self.config = transformers.PretrainedConfig(num_mel_bins=20)

    def forward(self, input_values: Any, input_features: Any) -> Any:
        return self.convolution(input_values), self.linear(input_features)


@pytest.mark.parametrize(("width", "shape"), [(20, (2, 8, 20)), (80, (2, 8, 80)), (8, (2, 20, 8))])
def test_inputs_of_sound_have_the_shapes_that_the_class_accepts(
    width: int, shape: tuple[int, ...]
) -> None:
    """The configuration states neither channels nor stacked frames."""
    with torch.device("meta"):
        inputs = example_inputs(_Sound(width), batch=2, seq=8)
    assert tuple(inputs["input_values"].shape) == (2, 1, 8 * 320)
    assert tuple(inputs["input_features"].shape) == shape


@pytest.mark.quick
def test_infinite_numbers_of_a_configuration_are_read() -> None:
    """As transformers writes them, since JSON has none."""
    config = transformers.Mamba2Config(time_step_limit=(0.0, float("inf")))
    stored = json.loads(config.to_json_string(use_diff=False))["time_step_limit"]
    assert stored[1] != float("inf") and class_export._decoded(stored) == [0.0, float("inf")]

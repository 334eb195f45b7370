# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Published models have the bytes of their files, and fit where they are served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command import main
from tvm_distir.models import stored_weights
from tvm_distir.models.common.published import PUBLISHED, published_name, zoo_spec
from tvm_distir.models.stored_weights import _PUBLISHED
from tvm_distir.performance import grouped
from tvm_distir.planning.weight_types import kernels_for
from tvm_distir.support import ModelError

TOTAL_SIZE = {
    "gemma-2-9b": 18483411968, "gpt-oss-120b": 65248815744, "gpt-oss-20b": 13761264768,
    "deepseek-v2-lite": 31412968448, "llama-3.1-70b": 141107412992, "llama-3.1-8b": 16060522496,
    "llama-3.2-3b": 6425499648, "mistral-7b-v0.3": 14496047104,
    "mistral-nemo-base-2407": 24495564800, "mixtral-8x7b-v0.1": 93405585408,
    "meta-llama-3.1-70b-instruct-awq-int4": 39767785472, "qwen2.5-32b": 65527752704,
    "qwen2.5-72b": 145412407296, "qwen2.5-7b": 15231233024, "qwen3-235b-a22b": 470187269120,
    "qwen3-30b-a3b": 61064245248, "qwen3-32b": 65524246528, "qwen3-8b": 16381470720,
}  # fmt: skip
"""``total_size`` of ``model.safetensors.index.json`` in the repository of each name."""
KEYS = "?batch=1,seq=16"


def weight_bytes(spec: str, quantize: str | None = None) -> int:
    """Return the bytes of all weights in the types of the checkpoint, or in a stated type."""
    model = td.load_model(spec)
    program = td.export(
        td.distribute(model.mod, td.planning.make_plan(model.mod, "data_parallel", {"dp": 1}))
    )
    kernels = kernels_for("fused", quantize, model, None)
    return sum(v.bytes for _, _, v in grouped(program, kernels).inputs() if v.role == "weight")


@pytest.mark.quick
@pytest.mark.parametrize("name", TOTAL_SIZE)
def test_weights_have_the_bytes_of_the_files(name: str) -> None:
    assert weight_bytes(f"hf:{name}{KEYS}") == TOTAL_SIZE[name]


def test_files_in_float8_have_scales_per_tensor() -> None:
    """``nvidia/Llama-3.1-8B-Instruct-FP8``: 9,081,280,648 bytes of files, with their headers."""
    assert weight_bytes(f"hf:llama-3.1-8b{KEYS}", "fp8") == pytest.approx(9081280648, rel=1e-4)


def test_files_of_deepseek_have_a_layer_more() -> None:
    """Its layer for multi-token prediction is one with experts, with tables of its own.

    ``README_WEIGHTS.md`` of DeepSeek-V3: the layer shares embedding and head, which its files
    repeat, and has a product of twice the width.
    """
    spec = "hf:deepseek-v3?batch=1,seq=16"
    main, more = weight_bytes(spec), weight_bytes(f"{spec},layers=62")
    hidden, vocab = 7168, 129280
    assert main == pytest.approx(688586727753, rel=0.025)
    extra = 2 * (2 * vocab * hidden + 2 * hidden * hidden)
    assert more + extra == pytest.approx(688586727753, rel=1e-4)


@pytest.mark.quick
def test_published_types_belong_to_names() -> None:
    assert set(_PUBLISHED) <= set(PUBLISHED)
    for name in _PUBLISHED:
        stored = stored_weights(f"hf:{name}")
        assert stored is not None
        assert stored.source == f"{name} is published so"
    assert stored_weights("hf:llama-3.1-8b") is None
    assert stored_weights("zoo:gpt_oss?size=120b") is None


@pytest.mark.parametrize(
    ("name", "devices", "system"),
    [
        ("gpt-oss-120b", 1, "h100"), ("gpt-oss-20b", 1, "rtx-4090"), ("deepseek-v3", 8, "h200"),
        ("meta-llama-3.1-70b-instruct-awq-int4", 2, "rtx-4090"),
    ],
)  # fmt: skip
def test_models_fit_where_they_are_served(name: str, devices: int, system: str) -> None:
    """None of them fits in 16 bits."""
    fits = []
    for quantize in (None, "none"):
        result = td.analyze(
            f"hf:{name}?batch=1,seq=128", strategy="megatron", mesh={"tp": devices},
            system=system, quantize=quantize,
        )  # fmt: skip
        fits.append(result.report.fits)
    assert fits == [True, False]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_mixture_in_mxfp4_is_served_by_one_device() -> None:
    """GPT-OSS 120B leaves room for caches on a device of 80 GB."""
    work = "closed:2,in=128,out=8,count=4"
    report = td.serve_analyze("hf:gpt-oss-120b", "megatron", {"tp": 1}, "h100-serving", work)
    assert report.weights.startswith("weights of products: mxfp4, 4.25 bits")
    assert report.weight_bytes == pytest.approx(TOTAL_SIZE["gpt-oss-120b"], rel=1e-3)
    assert report.cache_tokens > 10_000


def test_a_refusal_for_memory_names_the_types_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """70B in 16 bits need 131 GiB; in 8 bits 68 GiB, of which an engine leaves room for caches."""
    model = ["hf:llama-3.1-70b?batch=1,seq=64", "--strategy", "megatron", "--mesh", "tp=1"]
    assert main(["analyze", *model, "--system", "h100"]) == 3
    shown = capsys.readouterr()
    assert "Weights of these types fit: --quantize fp8, --quantize int4." in shown.err
    assert re.search("--quantize int4: about [0-9.]+ GiB, fits", shown.out)
    for kind in ("fp8", "int4"):
        assert main(["analyze", *model, "--system", "h100", "--quantize", kind]) == 0
        capsys.readouterr()
    assert main(["analyze", *model, "--system", "h100", "--train"]) == 3
    assert "--quantize" not in capsys.readouterr().err
    search = ["search", model[0], "--devices", "1", "--system", "h100"]
    assert main(search) == 3
    assert "[Use --quantize fp8 or int4. Use more devices" in capsys.readouterr().err
    assert main([*search, "--quantize", "fp8"]) == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_engines_without_room_name_the_types_that_leave_some(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In 8 bits, 0.9 of a device leave 3 GiB for caches: 10 requests of 1,088 tokens."""
    model, work = "hf:llama-3.1-70b?layers=80", "closed:2,in=1024,out=64,count=4"
    common = ["--system", "h100-serving", "--workload", work]
    assert main(["serve-analyze", model, "--mesh", "tp=1", *common]) == 1
    assert "[Use --quantize fp8 or int4. Use more devices" in capsys.readouterr().err
    assert main(["serve-search", model, "--devices", "1", *common]) == 0
    assert "leave no room for a request; Use --quantize fp8 or int4" in capsys.readouterr().out


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("llama3", "meta-llama/Meta-Llama-3-8B"), ("Llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B"),
        ("gpt2", "openai-community/gpt2"),
        ("deepseek-v3-0324", "deepseek-ai/DeepSeek-V3"), ("gemma-2-9b-it", "google/gemma-2-9b"),
        ("deepseek-r1-0528", "deepseek-ai/DeepSeek-R1"),
        ("mixtral-8x7b-instruct", "mistralai/Mixtral-8x7B-v0.1"),
        ("kimi-k2-instruct", "moonshotai/Kimi-K2-Instruct"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("hub", ["", "hf:"])
def test_names_as_people_write_them_are_known(name: str, full: str, hub: str) -> None:
    assert published_name(f"{hub}{name}?layers=1") == full
    assert zoo_spec(f"{hub}{name}?layers=1") == f"zoo:{PUBLISHED[full]},layers=1"


def test_a_name_needs_no_mark_where_no_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"strategy": "megatron", "mesh": {"tp": 2}, "system": "h100"}
    times = [
        td.analyze(f"{hub}llama3?layers=1,batch=1,seq=16", **options).time_s for hub in ("", "hf:")
    ]
    assert times[0] == times[1]
    (tmp_path / "llama3").write_text("none")
    with pytest.raises(ModelError, match="DIST0302"):
        td.load_model("llama3")


def test_kimi_has_the_published_number_of_parameters() -> None:
    """1.026 T, as its report has it (1.04 T with a layer for multi-token prediction and tables)."""
    count = weight_bytes(f"hf:kimi-k2-instruct{KEYS}", "none") / 2
    assert count == pytest.approx(1.026e12, rel=0.002)


def test_a_stated_key_replaces_that_of_the_published_model() -> None:
    """Kimi K2 is DeepSeek-V3 with other sizes, of which one is stated otherwise."""
    spec = zoo_spec("hf:kimi-k2-instruct?dense_layers=2,layers=3")
    assert spec.count("dense_layers=") == 1 and spec.endswith(",dense_layers=2,layers=3")
    assert "experts=384" in spec and "size=v3" in spec

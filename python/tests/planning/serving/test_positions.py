# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Requests that are longer than a model has positions are refused."""

from __future__ import annotations

import json

import pytest

from tvm_distir.hardware import System
from tvm_distir.planning.serving.fleet import search_fleet
from tvm_distir.planning.serving.levels import ServiceLevels
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.serving_report import serve_analyze
from tvm_distir.planning.serving.serving_search import search_serving
from tvm_distir.planning.serving.workload import Workload
from tvm_distir.support import ModelError

from .tiny_config import CONFIG as TINY

pytestmark = pytest.mark.quick
CONFIG = {**TINY, "max_position_embeddings": 512}
LEVELS = ServiceLevels(ttft_s=1.0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def served(model):
    return ServedModel(model, "megatron", {"tp": 1}, System.load("h100"))


@pytest.mark.parametrize(
    ("model", "positions"),
    [
        ("zoo:gpt?size=tiny", 64),
        ("hf:gpt2", 1024),
        ("hf:deepseek-v3", 163840),
        ("hf:gpt-oss-20b", 131072),
        ("hf:llama-3.1-8b", 0),
    ],
)
def test_positions_are_those_of_the_model(model, positions):
    assert served(model).positions == positions


def test_the_longest_request_decides(folder, tmp_path):
    model = served(folder)
    assert model.positions == 512
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,400,112\n1,400,113\n")
    for text, most in (
        ("poisson:1,in=256,out=256", 512),
        ("burst,in=uniform:1-256,out=256", 512),
        ("closed:4,in=256,out=257", 513),
        ("poisson:1e-9,in=uniform:1-500,out=13", 513),
        (str(trace), 513),
    ):
        work = Workload.parse(text)
        assert work.most_tokens[1] == most
        if most > 512:
            with pytest.raises(ModelError, match=f"DIST0332.*a request has {most} tokens"):
                model.check_lengths(work)
        else:
            model.check_lengths(work)
    spread = Workload.parse("poisson:1,in=lognormal:100:1.0,out=1")
    assert spread.most_tokens == (0, 0)
    with pytest.raises(ModelError, match="DIST0332"):
        model.check_lengths(spread)


def test_analyses_and_searches_refuse_them(folder):
    work = "poisson:1,in=500,out=20"
    for call in (
        lambda: serve_analyze(folder, "megatron", {"tp": 1}, "h100", work),
        lambda: search_serving(folder, 1, "h100", work, LEVELS),
        lambda: search_fleet(folder, ["h100"], work, LEVELS, devices=1),
    ):
        with pytest.raises(ModelError, match=r"520 tokens, and .* 512 positions"):
            call()

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The engines' own parsers read the commands that start them, where installed; none needs a GPU.

That of TensorRT-LLM does: its names are those of ``engine_options.json``."""

from __future__ import annotations

import argparse
import random
from typing import Any

import pytest

from tests.planning.serving.flag_reader import words_of
from tests.planning.serving.test_engine_flags import OPTIONS, drawn
from tvm_distir.planning.serving.engine_flags import engine_table, server_command
from tvm_distir.planning.serving.engine_server import EngineServer

CASES = 40


def servers(engine: str) -> list[tuple[EngineServer, list[str]]]:
    """Return servers with the words of their options and of the model."""
    table, rng, result = engine_table(engine), random.Random(11), []
    for number in range(CASES):
        server = drawn(table, rng)
        words = words_of(server_command(table, server, number))
        while words[0].isupper() or "=" in words[0]:
            words.pop(0)
        start = {"vllm": 2, "sglang": 3, "dynamo": 3}[engine]
        result.append((server, words[start:]))
    return result


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM be that of a CPU: its parser asks for the kind of device."""
    platforms = pytest.importorskip("vllm.platforms")
    cpu = pytest.importorskip("vllm.platforms.cpu")
    monkeypatch.setattr(platforms, "_current_platform", cpu.CpuPlatform())


def agree(server: EngineServer, read: Any) -> None:
    """Compare what vLLM reads with a server."""
    experts = server.experts > 1
    assert read.tensor_parallel_size == server.tensor
    assert read.data_parallel_size == (server.experts if experts else server.data)
    assert read.enable_expert_parallel == experts
    assert read.pipeline_parallel_size == server.stages
    assert read.max_num_batched_tokens == server.tokens
    assert read.max_num_seqs == server.requests
    assert read.max_model_len == (server.length or None)
    assert read.gpu_memory_utilization == server.memory[0]
    assert bool(read.kv_cache_dtype != "auto") == bool(server.caches)
    assert bool(read.quantization) == bool(server.weights)
    if server.draft:
        assert read.speculative_config["model"] == server.draft
        assert read.speculative_config["num_speculative_tokens"] == server.draft_tokens
    if server.phase:
        transfer = read.kv_transfer_config
        assert transfer.is_kv_producer == (server.phase == "prefill")
        assert transfer.is_kv_consumer == (server.phase == "decode")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("without_gpu")
def test_vllm_reads_its_options() -> None:
    cli = pytest.importorskip("vllm.entrypoints.openai.cli_args")
    utils = pytest.importorskip("vllm.utils.argparse_utils")
    parser = cli.make_arg_parser(utils.FlexibleArgumentParser())
    for server, words in servers("vllm"):
        read = parser.parse_args(words)
        assert read.model_tag == server.model
        agree(server, read)
    names = {name for action in parser._actions for name in action.option_strings}
    assert set(OPTIONS["vllm"]["options"]) <= names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("without_gpu")
def test_dynamo_reads_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("dynamo.vllm.args")
    frontend = pytest.importorskip("dynamo.frontend.frontend_args")
    for server, words in servers("dynamo"):
        config, read = module._parse_cli_args(words)
        assert read.model == server.model
        assert (config.disaggregation_mode or "") == server.phase
        agree(server, read)
    parser = argparse.ArgumentParser()
    frontend.FrontendArgGroup().add_arguments(parser)
    for command in engine_table("dynamo")["routers"].values():
        assert parser.parse_args(command.split()[3:]).http_port == 8000


@pytest.mark.filterwarnings("ignore")
def test_sglang_reads_its_options() -> None:
    arguments = pytest.importorskip("sglang.srt.server_args")
    parser = argparse.ArgumentParser()
    arguments.ServerArgs.add_cli_args(parser)
    for server, words in servers("sglang"):
        read = parser.parse_args(words)
        assert read.model_path == server.model
        parts = server.experts
        assert (read.tp_size, read.attn_dp_size, read.ep_size) == (
            server.tensor * parts, parts, parts
        )  # fmt: skip
        assert (read.dp_size, read.pp_size) == (server.data, server.stages)
        assert read.chunked_prefill_size == server.tokens * parts
        assert read.max_running_requests == server.requests * parts
        assert read.context_length == (server.length or None)
        assert read.enable_mixed_chunk == (server.scheduler == "continuous")
        assert read.disaggregation_mode == (server.phase or "null")
        assert read.speculative_draft_model_path == (server.draft or None)
        assert bool(read.quantization) == bool(server.weights)
    names = {name for action in parser._actions for name in action.option_strings}
    assert set(OPTIONS["sglang"]["options"]) <= names

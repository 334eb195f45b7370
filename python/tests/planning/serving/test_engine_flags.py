# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The commands that start engines: read back they are the same deployment."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from tests.planning.serving.flag_reader import pairs_of, read_server
from tests.planning.serving.test_serving_surface import fitted_once
from tvm_distir.hardware import System
from tvm_distir.interface.command.app import main
from tvm_distir.planning.serving.batching import SchedulerOptions
from tvm_distir.planning.serving.engine_flags import (
    ENGINES,
    engine_commands,
    engine_table,
    server_command,
)
from tvm_distir.planning.serving.engine_server import EngineServer
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.serving_engine import ServingEngine
from tvm_distir.planning.serving.serving_run import ServingSetup
from tvm_distir.planning.serving.speculation import Speculation
from tvm_distir.planning.serving.step_memory import StepMemory
from tvm_distir.planning.serving.workload import Workload
from tvm_distir.planning.weight_types import with_weights
from tvm_distir.support import PlanError, UsageError, shipped_data

from .tiny_config import CONFIG

OPTIONS = shipped_data(__file__, "engine_options.json")
F8 = "float8_e4m3fn"
WORK = Workload.parse("poisson:9,in=uniform:9-40,out=8")
pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("it's a model")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return str(path)


def drawn(table, rng) -> EngineServer:
    """Return a server that the engine has."""
    options = table["options"]

    def one_of(name):
        return rng.choice(["", *options[name]])

    division, more = rng.choice(["", *options["division"]]), {}
    scheduler = rng.choice(list(options["scheduler"]))
    phase = [*scheduler.split()[1:], ""][0]
    if scheduler.endswith("draft"):
        more = {"draft": "a/b c", "draft_tokens": rng.randint(1, 7)}
    if phase in options["phase"]:
        more |= {"phase": phase}
        more |= {"sent": rng.choice([0, 1024])} if options["sent"] else {}
    return EngineServer(
        "owner/name", division,
        rng.choice([2, 8]) if division in ("tensor", "experts and their widths") else 1,
        rng.choice([2, 4]) if division.startswith("experts") else 1,
        rng.choice([1, 2]) if "data" in options and not division else 1,
        rng.choice([1, 2, 4]), scheduler, rng.choice([512, 8192]), rng.choice([64, 256]),
        rng.choice([0, 4096]), memory=(0.9, 0.88, 0.87),
        caches=one_of("caches"), weights=one_of("weights"), **more,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_options_that_are_read_back_give_the_server(engine):
    table, rng = engine_table(engine), random.Random(3)
    schedulers = table["options"]["scheduler"]
    for number in range(300):
        server = drawn(table, rng)
        command = server_command(table, server, number)
        read = read_server(table, command)
        assert schedulers[read.scheduler] == schedulers[server.scheduler]
        (share,) = read.memory
        assert share in server.memory
        assert replace(read, scheduler=server.scheduler, memory=server.memory) == server


@pytest.mark.parametrize("engine", ENGINES)
def test_options_have_names_that_the_engine_documents(engine):
    table, known = engine_table(engine), OPTIONS[engine]
    templates = [table["command"], table.get("settings", "")]
    for words in table["options"].values():
        templates += [words] if isinstance(words, str) else words.values()
    names = {name for template in templates for name in pairs_of(template.split())}
    options = {name.partition(".")[0] for name in names if name.startswith("--")}
    assert options <= set(known["options"]) and len(options) >= 8
    settings = {n for n in names if n and not n.startswith("--") and not n.isupper()}
    assert settings - set(table["command"].split()) <= set(known.get("settings", []))
    for router in table.get("routers", {}).values():
        assert {word for word in router.split() if word[:2] == "--"} <= set(known["router"])


def plan_of(commands, table):
    """Return what servers of each phase state, and how many there are."""
    read = [read_server(table, server.command) for server in commands.servers]
    return {server: read.count(server) for server in read}


def engine_of(model, strategy="megatron", mesh=None, *, system="h100", scheduler="continuous",
              weights="", kv_dtype="", draft_tokens=0):  # fmt: skip
    """Return an engine whose steps are not tabulated."""
    named = with_weights(System.load(system), weights, model)
    served = ServedModel(model, strategy, mesh or {"tp": 2}, named, kv_dtype)
    guess = Speculation("", draft_tokens, 0.7) if draft_tokens else None
    engine = ServingEngine(served, None, SchedulerOptions.parse(scheduler), None, guess)
    vars(engine)["memory"] = StepMemory(1 << 34, 65536.0, 1 << 31)
    return engine


def commands_of(model, engine="vllm", *arguments, **options):
    setup = ServingSetup(engine_of(model, *arguments, **options))
    return engine_commands(setup, WORK, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deployment_is_read_back(engine, folder):
    """Its plan, the limits of its steps, its replicas, the devices of each on a node."""
    decoding = engine_of(folder, scheduler="continuous:tokens=512,requests=64", kv_dtype=F8)
    filling = engine_of(
        folder, "megatron", {"tp": 4}, system="h200", scheduler="continuous:tokens=1024",
        kv_dtype=F8,
    )  # fmt: skip
    setup = ServingSetup(decoding, 3, filling, 2, "least_requests")
    commands = engine_commands(setup, WORK, engine)
    assert commands.router == "least_requests"
    assert bool(commands.router_command) == (engine == "dynamo")
    (filler, fillers), (decoder, decoders) = plan_of(commands, engine_table(engine)).items()
    assert (fillers, decoders) == (2, 3)
    assert (filler.tensor, filler.tokens, filler.requests) == (4, 1024, 256)
    assert (decoder.tensor, decoder.tokens, decoder.requests) == (2, 512, 64)
    for server, phase in ((filler, "prefill"), (decoder, "decode")):
        assert (server.phase, server.length, server.model) == (phase, 48, folder)
        assert server.caches == F8
    devices = [(s.system, s.node, s.devices) for s in commands.servers]
    assert devices[:2] == [("h200", 0, (0, 1, 2, 3)), ("h200", 0, (4, 5, 6, 7))]
    assert devices[2:] == [("h100", 0, (0, 1)), ("h100", 0, (2, 3)), ("h100", 0, (4, 5))]
    assert len({s.command for s in commands.servers}) == 5
    assert all(s.command in commands.text() for s in commands.servers)


def test_servers_are_packed_on_nodes(folder):
    """None is divided over two nodes; those of a node need no list of devices."""
    six = engine_of(folder, mesh={"tp": 6})
    commands = engine_commands(ServingSetup(six, 2), WORK, "vllm")
    assert [(s.node, s.devices[0]) for s in commands.servers] == [(0, 0), (1, 0)]
    eight = engine_commands(ServingSetup(engine_of(folder, mesh={"tp": 8}), 2), WORK, "vllm")
    assert [s.node for s in eight.servers] == [0, 1]
    assert all(s.command.startswith("vllm serve ") for s in eight.servers)
    assert "vllm serve 'it'" not in eight.text()


def test_what_an_engine_cannot_say_is_refused_by_name(folder):
    for text, engine, arguments, options in (
        ("no option for the scheduler static", "vllm", (), {"scheduler": "static"}),
        ("by --scheduler: continuous, prefill_first", "sglang", (), {"scheduler": "static"}),
        ("no option for the weights int4", "vllm", (), {"weights": "int4"}),
        ("no option for the weights fp8", "trtllm", (), {"weights": "fp8"}),
        ("no option for the caches float32", "sglang", (), {"kv_dtype": "float32"}),
        ("no option for the data 2", "trtllm", ("data_parallel", {"dp": 2}), {}),
        ("the scheduler continuous draft", "sglang", (), {"draft_tokens": 2}),
        ("weights fp8 of a draft model too", "vllm", (), {"weights": "fp8", "draft_tokens": 2}),
        ("the plan megatron:sequence=1 tp=2", "vllm", ("megatron:sequence=1",), {}),
        ("the plan megatron tp=2,cp=2", "vllm", ("megatron", {"tp": 2, "cp": 2}), {}),
        ("no steps of 8 tokens for 256 requests", "vllm", (), {"scheduler": "continuous:tokens=8"}),
        ("takes 16 devices, and a node has 8", "vllm", ("megatron", {"tp": 16}), {}),
    ):
        with pytest.raises(PlanError, match="DIST0241") as caught:
            commands_of(folder, engine, *arguments, **options)
        assert text in str(caught.value)
    for model in ("zoo:llama3?size=tiny", f"{folder}?layers=1"):
        with pytest.raises(PlanError, match="does not name a checkpoint"):
            commands_of(model)
    with pytest.raises(UsageError, match="DIST0152"):
        commands_of(folder, "vlm")


def test_experts_are_divided_as_engines_divide_them(tmp_path):
    mixture = {**CONFIG, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(mixture))
    model = str(tmp_path)
    both = "expert_parallel+megatron", {"ep": 2, "tp": 2}
    for engine, options in (
        ("vllm", "--data-parallel-size 4 --enable-expert-parallel"),
        ("sglang", "--tp-size 4 --attn-dp-size 4 --ep-size 4"),
        ("sglang", "--chunked-prefill-size 8192 --max-prefill-tokens 2048"),
        ("sglang", "--max-running-requests 1024"),
        ("trtllm", "--tp_size 4 --ep_size 4"),
    ):
        text = commands_of(model, engine, "expert_parallel", {"ep": 4}).text()
        assert options in text
    assert "--tp-size 4 --attn-dp-size 2 --ep-size 2" in commands_of(model, "sglang", *both).text()
    with pytest.raises(PlanError, match="the division experts and their widths"):
        commands_of(model, "vllm", *both)
    with pytest.raises(PlanError, match="over the parts of data parallelism"):
        commands_of(model, "vllm", "data_parallel", {"dp": 2})


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("hf:llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("hf:meta-llama/llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("hf:meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("hf:llama-3.1-8b-instruct", ""),
        ("hf:deepseek-r1-distill-llama-8b", ""),
        ("hf:llama-3.1-8b?layers=2", ""),
    ],
)
def test_other_weights_of_the_same_sizes_are_not_loaded(model, name):
    from tvm_distir.models import checkpoint_name

    assert checkpoint_name(model) == name


def test_weights_that_a_checkpoint_has_need_no_option(tmp_path):
    data = {**CONFIG, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(data))
    h100 = System.load("h100")
    assert with_weights(h100, "", str(tmp_path)) != h100
    assert "quantization" not in commands_of(str(tmp_path)).text()
    with pytest.raises(PlanError, match="no option for the weights none"):
        commands_of(str(tmp_path), weights="none")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_commands_are_printed(folder, capsys):
    arguments = ["--system", "h100", "--workload", "poisson:900,in=16,out=4,count=40"]
    with fitted_once():
        analyze = ["serve-analyze", folder, "--mesh", "tp=1", *arguments, "--flags", "vllm"]
        assert main(analyze) == 0
        assert "CUDA_VISIBLE_DEVICES=0 vllm serve " in capsys.readouterr().out
        search = ["serve-search", folder, "--devices", "1", *arguments, "--json"]
        assert main([*search, "--ttft", "1s", "--flags", "dynamo"]) == 0
        known = json.loads(capsys.readouterr().out)
        assert known["commands"]["router_command"].startswith("python -m dynamo.frontend")
        assert [s["node"] for s in known["commands"]["servers"]] == [0]
        assert main([*search, "--ttft", "1s", "--rate", "900", "--flags", "sglang"]) == 0
        known = json.loads(capsys.readouterr().out)
        assert len(known["commands"]["servers"]) == known["choices"][0]["devices"]
        assert "setup" not in known["choices"][0]
        assert main([*search, "--ttft", "1us", "--flags", "vllm"]) == 0
        assert json.loads(capsys.readouterr().out)["commands"] is None
    assert main([*analyze[:-1], "vlm"]) == 2

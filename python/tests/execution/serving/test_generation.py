# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tokens that a serving step generates: those of the model forward, in the simulated batches."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

import tvm_distir as td
from tests.execution.runtime.test_runtime_mpi import needs_mpi
from tests.execution.serving.test_serving import serve
from tvm_distir.execution import Sampling, draw_inputs, serve_prompts
from tvm_distir.execution.serving.prompts import PromptFile
from tvm_distir.interface.command.app import main
from tvm_distir.planning.serving.batching import SchedulerOptions, StepTimes
from tvm_distir.planning.serving.engine_loop import EngineLoop
from tvm_distir.planning.serving.workload import Requests
from tvm_distir.support.errors.tree import DistIRError, EngineError

SEQ, PAGE, MODEL = 20, 4, "zoo:llama3?size=tiny,layers=1,vocab=61"
LENGTHS, OUTPUTS = (4, 8, 1, 11, 3), (5, 9, 7, 8, 6)


@functools.cache
def serving_step(pages=14, strategy="megatron", more=""):
    keys = f"entry=serve,batch=6,seq=1,past={SEQ - 1},page={PAGE},pages={pages}{more}"
    mod = td.load_model(f"{MODEL},{keys}").mod
    return mod, td.distribute(mod, td.planning.make_plan(mod, strategy, {"tp": 2}))


@functools.cache
def weights():
    mod, _ = serving_step()
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    drawn = dict(zip(names, draw_inputs(mod, seed=1), strict=True))
    return {n: 3 * v for n, v in drawn.items() if v.dtype == np.float32 and "cache" not in n}


@functools.cache
def prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 61, length).tolist() for length in LENGTHS]


@functools.cache
def logits_of(tokens):
    """The logits behind some tokens, by the model forward on a single device."""
    mod, names = forward()
    ids = np.zeros((1, SEQ), np.int32)
    ids[0, : len(tokens)] = tokens
    values = {**weights(), "input_ids": ids}
    (logits,) = td.run(mod, [values[name] for name in names], engine="virtual")
    return logits[0, len(tokens) - 1]


@functools.cache
def forward():
    mod = td.load_model(f"{MODEL},batch=1,seq={SEQ}").mod
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    return td.compile(
        td.distribute(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 1}))
    ), names


def alone(prompt, count, sampling=Sampling(), number=0):
    tokens = list(prompt)
    for step in range(count):
        tokens.append(sampling.token(logits_of(tuple(tokens)), number, step))
    return tokens[len(prompt) :]


def expected():
    return [alone(prompt, count) for prompt, count in zip(prompts(), OUTPUTS, strict=True)]


def simulated(scheduler, pages):
    """Steps of the native event loop: (steps, 5), with one picosecond for each step."""
    count, axis, ones = len(LENGTHS), np.array([1, 2]), np.ones((1, 2, 2), np.int64)
    columns = np.zeros(count), LENGTHS, OUTPUTS, np.full(count, -1), np.zeros(count)
    requests = Requests(*(np.array(column, np.int64) for column in columns))
    options = SchedulerOptions.parse(scheduler)
    times = StepTimes(axis, axis, ones, axis, axis, ones)
    ((_, served),) = EngineLoop(times, options, pages - 1, PAGE).serve(requests)
    return served


@pytest.mark.parametrize("engine", ["virtual", "threads"])
@pytest.mark.parametrize("kind", ["continuous", "prefill_first", "static"])
def test_tokens_are_those_of_the_model_and_batches_those_of_the_simulation(kind, engine):
    _, dist = serving_step()
    result = td.generate(dist, prompts(), OUTPUTS, weights(), scheduler=kind, engine=engine)
    assert result.tokens == expected()
    np.testing.assert_array_equal(result.steps, simulated(f"{kind}:tokens=6", 14).steps)
    assert len(result.times_s) == len(result.steps)
    assert min(result.times_s) > 0


@pytest.mark.parametrize("pages", [6, 7, 9])
def test_preempted_requests_get_the_same_tokens(pages):
    _, dist = serving_step(pages)
    scheduler = "continuous:tokens=6,requests=4"
    served = simulated(scheduler, pages)
    assert served.preemptions.sum() > 0
    result = td.generate(dist, prompts(), OUTPUTS, weights(), scheduler=scheduler, engine="virtual")
    assert result.tokens == expected()
    np.testing.assert_array_equal(result.steps, served.steps)


def test_sampled_tokens_do_not_depend_on_batches():
    _, dist = serving_step()
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=5)
    results = [
        td.generate(dist, prompts(), 4, weights(), scheduler=kind, sampling=sampling).tokens
        for kind in ("continuous:tokens=3", "static")
    ]
    want = [alone(prompt, 4, sampling, n) for n, prompt in enumerate(prompts())]
    assert results == [want, want]
    assert want != [alone(prompt, 4) for prompt in prompts()]


def test_frequencies_of_sampled_tokens():
    logits = np.log(np.array([0.5, 0.2, 0.15, 0.1, 0.05], np.float32))[[2, 0, 4, 1, 3]]
    sampling = Sampling(temperature=1.0, top_p=0.8, seed=1)
    counts = np.bincount([sampling.token(logits, 0, n) for n in range(4000)], minlength=5) / 4000
    np.testing.assert_allclose(counts, np.array([0.15, 0.5, 0, 0.2, 0]) / 0.85, atol=0.025)
    sharp = Sampling(temperature=0.01, top_p=1.0)
    assert {sharp.token(logits, 0, n) for n in range(50)} == {1}


def test_a_stop_token_ends_a_request():
    _, dist = serving_step()
    full = expected()
    stop = full[1][2]
    result = td.generate(dist, prompts(), OUTPUTS, weights(), stop=stop, engine="virtual")
    assert result.tokens == [t[: t.index(stop) + 1] if stop in t else t for t in full]


def test_requests_arrive_by_the_clock_of_the_times():
    _, dist = serving_step()
    axis, second = np.array([1, 2]), np.full((1, 2, 2), 10**12, np.int64)
    times = StepTimes(axis, axis, second, axis, axis, second)
    result = td.generate(
        dist, prompts()[:2], 2, weights(), times=times, arrivals_s=[0.0, 10.0], engine="virtual"
    )
    assert result.steps[:, 0].tolist() == [0, 10**12, 10 * 10**12, 11 * 10**12, 12 * 10**12]
    assert result.tokens == [alone(prompt, 2) for prompt in prompts()[:2]]
    file = PromptFile(prompts()[:2], 2, [0.0, 10.0], step_s=1.0)
    by_file = serve_prompts(dist, file, weights(), engine="virtual")
    np.testing.assert_array_equal(by_file.steps, result.steps)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": [[1] * 18], "tokens": 3}, "from 2 to 20 tokens"),
        ({"prompts": [[]], "tokens": 3}, "0 tokens"),
        ({"prompts": [], "tokens": 3}, "at least one prompt"),
        ({"prompts": [[1], [2]], "tokens": [3]}, "2 prompts"),
        ({"prompts": [[1], [2]], "tokens": 3, "arrivals_s": [1.0, 0.5]}, "ascending"),
        ({"prompts": [[1]], "tokens": 3, "scheduler": "continuous:tokens=7"}, "6 rows"),
        ({"prompts": [[1]], "tokens": 3, "scheduler": "orca"}, "unknown scheduler"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    _, dist = serving_step()
    options = {"prompts": prompts(), "tokens": 2, **change}
    with pytest.raises(DistIRError, match=message):
        td.generate(dist, weights=weights(), engine="virtual", **options)


def test_a_negative_time_of_steps_is_refused():
    with pytest.raises(EngineError, match=r"DIST0602.*step_s is -1"):
        serve_prompts(serving_step()[1], PromptFile([[1]], 2, step_s=-1.0), weights())


def test_another_program_is_refused():
    mod = td.load_model(f"{MODEL},entry=serve,batch=2,seq=2,past=6").mod
    dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 2}))
    with pytest.raises(EngineError, match=r"DIST0602.*2 tokens"):
        td.generate(dist, prompts(), 2, weights(), engine="virtual")
    with pytest.raises(EngineError, match=r"DIST0602.*input_ids"):
        td.generate(forward()[0], prompts(), 2, weights(), engine="virtual")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generation")
    td.deploy(serving_step()[1], folder / "step", weights())
    (folder / "requests.json").write_text(json.dumps({"prompts": prompts(), "tokens": OUTPUTS}))
    return folder


def tokens_of(path):
    return [[token for token in row if token >= 0] for row in np.load(path)["tokens"].tolist()]


def test_the_command_generates(deployed, capsys):
    words = ["run", deployed / "step", "--requests", deployed / "requests.json"]
    out = deployed / "y.npz"
    assert main([*map(str, words), "-o", str(out)]) == 0
    assert "tokens: int32[5, 9]" in capsys.readouterr().out
    assert tokens_of(out) == expected()


@needs_mpi
def test_a_job_of_mpi_generates(deployed):
    out = deployed / "mpi.npz"
    words = [deployed / "step", "--requests", deployed / "requests.json", "-o", out]
    assert "2 processes" in serve(2, *words, engine="mpi")
    assert tokens_of(out) == expected()


def test_a_job_of_torchrun_generates(deployed):
    pytest.importorskip("torch", reason="extra torch")
    out = deployed / "torch.npz"
    words = [deployed / "step", "--requests", deployed / "requests.json", "-o", out]
    serve(2, *words)
    assert tokens_of(out) == expected()


@needs_mpi
def test_caches_of_a_job_are_the_state_of_its_steps(deployed):
    """A prompt of four tokens, one in each step, gives the logits of the model forward."""
    prompt, out = prompts()[0], deployed / "steps.npz"
    steps = {
        "input_ids": np.zeros((4, 6, 1), np.int32),
        "pages": np.zeros((4, 6, 5), np.int32),
        "lengths": np.zeros((4, 6), np.int32),
    }
    steps["input_ids"][:, 0, 0] = prompt
    steps["pages"][:, 0] = np.arange(1, 6)
    steps["lengths"][:, 0] = np.arange(4)
    np.savez(deployed / "rows.npz", **steps)
    serve(2, deployed / "step", "--steps", deployed / "rows.npz", "-o", out, engine="mpi")
    (logits,) = np.load(out).values()
    want = [logits_of(tuple(prompt[: n + 1])) for n in range(4)]
    np.testing.assert_allclose(logits[:, 0], want, rtol=1e-4, atol=1e-4)


def test_unknown_keys_of_a_file_are_refused(tmp_path):
    path = tmp_path / "requests.json"
    path.write_text(json.dumps({"prompts": [[1]], "tokens": 2, "samplng": {}}))
    with pytest.raises(EngineError, match=r"DIST0602.*samplng"):
        PromptFile.read(path)
    path.write_text(json.dumps({"prompts": [[1]], "tokens": 2, "sampling": {"temperature": 1.0}}))
    assert PromptFile.read(path).sampling == Sampling(temperature=1.0)


@pytest.mark.parametrize("word", ["--steps", "--trace", "--losses"])
def test_options_of_steps_are_refused_beside_requests(deployed, word, capsys):
    words = ["run", deployed / "step", "--requests", deployed / "requests.json", word, "x.json"]
    assert main([*map(str, words), "-o", str(deployed / "z.npz")]) == 2
    assert f"DIST0151 tvm-distir run: {word} is no option of --requests" in capsys.readouterr().err

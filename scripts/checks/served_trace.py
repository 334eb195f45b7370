#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Generate tokens for the requests of a trace, and compare tokens, batches and times of steps.

Usage: scripts/checks/served_trace.py [--wall] [threads:1] [threads:2] [torch:2]

``benchmarks/measured/azure_llm_conversation.csv`` has the first 200 requests of the conversation
trace of Azure's LLM inference dataset of 2023 (Patel et al. 2024, "Splitwise"; CC-BY 4.0). Their
lengths are divided by 16 and their arrivals by 8, so that a Llama of 4 layers and 256 features
serves them in some 300 steps of 64 rows. Each word is an engine with its number of devices:
``td.generate`` on threads, or ``run --requests`` in a job of ``torchrun``.

Tokens must be the most likely ones of the model forward on one device, which reads each request
with its answer at once. Batches must be those of the native event loop. The predicted time of a
step is that of its measured kernels (``td.measure``) on ``laptop-cpu``, which run (``"tvm"``). The
measured one is the CPU time of the process for each of its ranks, or of the thread that runs a rank
of a job, as others may use the machine; with ``--wall`` it is the elapsed time, and the prediction
has the collectives. Prints medians and totals of both without the first step, which compiles the
program on threads; exits 1 when tokens or batches differ.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # processes of jobs take it over

TRACE = ROOT / "benchmarks" / "measured" / "azure_llm_conversation.csv"
SHORTER, FASTER = 16, 8
ROWS, PAGE, PAGES, COLUMNS = 64, 16, 256, 20
MODEL, VOCAB = "zoo:llama3?size=tiny,layers=4,hidden=256,vocab=512", 512
SCALE = 0.08
"""Of weights, so that activations stay normal numbers."""
MEMBER = "--member"


def requests() -> dict[str, Any]:
    """Return the requests of the trace, as a file of ``run --requests`` has them."""
    with TRACE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rng = np.random.default_rng(0)
    counts = [[-(-int(row[f"{kind}_tokens"]) // SHORTER) for row in rows] for kind in
              ("input", "output")]  # fmt: skip
    return {
        "prompts": [rng.integers(0, VOCAB, count).tolist() for count in counts[0]],
        "tokens": counts[1],
        "arrivals_s": [float(row["arrival_s"]) / FASTER for row in rows],
    }


def serving_step(devices: int) -> tuple[Any, dict[str, Any]]:
    """Return the distributed step, whose caches are appended to in place, and its weights."""
    import tvm_distir as td
    from tvm_distir.transforms import DonateInputs

    past = COLUMNS * PAGE - 1
    keys = f"entry=serve,batch={ROWS},seq=1,past={past},page={PAGE},pages={PAGES}"
    mod = td.load_model(f"{MODEL},{keys}").mod
    rng, weights = np.random.default_rng(1), {}
    for param in mod["main"].params[3:]:
        shape = [int(n) for n in param.ty.shape]
        if "cache" not in str(param.name):
            # Norms begin with ones, as those of models do.
            value = SCALE * rng.standard_normal(shape) if len(shape) > 1 else np.ones(shape)
            weights[str(param.name)] = value.astype("float32")
    dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": devices}))
    return DonateInputs()(dist), weights


def predicted_s(step: Any, is_wall: bool) -> float:
    """Return the seconds of a step: with its collectives, or of its kernels alone."""
    import tvm_distir as td

    program = td.measure(step)
    if is_wall:
        return td.simulate(program, "laptop-cpu", blocking=True).time_s
    ops = (op for _, op in program.executed(program.entries[0].function))
    return sum(op.measured_ps for op in ops) * 1e-12


def most_likely(asked: dict[str, Any], answers: list[list[int]], weights: Any) -> list[list[int]]:
    """Return the most likely token behind each prefix of the answers, by the model forward."""
    import tvm_distir as td

    batch, seq = 20, COLUMNS * PAGE
    mod = td.load_model(f"{MODEL},batch={batch},seq={seq}").mod
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    plan = td.planning.make_plan(mod, "data_parallel", {"dp": 1})
    program = td.compile(td.distribute(mod, plan))
    ids = np.zeros((len(answers), seq), np.int32)
    for row, prompt, answer in zip(ids, asked["prompts"], answers, strict=True):
        row[: len(prompt) + len(answer)] = [*prompt, *answer]
    tokens = []
    for first in range(0, len(answers), batch):
        values = {**weights, "input_ids": ids[first : first + batch]}
        (logits,) = td.run(program, [values[name] for name in names])
        tokens += logits.argmax(-1).tolist()
    starts = [len(prompt) - 1 for prompt in asked["prompts"]]
    return [
        row[start : start + len(answer)]
        for row, start, answer in zip(tokens, starts, answers, strict=True)
    ]


def simulated(asked: dict[str, Any]) -> Any:
    """Return the steps of the native event loop."""
    from tvm_distir.planning import EngineLoop, Requests, SchedulerOptions, StepTimes

    count, axis = len(asked["prompts"]), np.array([1, 2], np.int64)
    each = np.full((1, 2, 2), round(asked["step_s"] * 1e12), np.int64)
    columns = (
        [round(second * 1e12) for second in asked["arrivals_s"]],
        [len(prompt) for prompt in asked["prompts"]], asked["tokens"], [-1] * count, [0] * count,
    )  # fmt: skip
    times = StepTimes(axis, axis, each, axis, axis, each)
    loop = EngineLoop(times, SchedulerOptions("continuous", ROWS), PAGES - 1, PAGE)
    ((_, served),) = loop.serve(Requests(*(np.array(c, np.int64) for c in columns)))
    return served.steps


def use_cpu_clock(clock: Any) -> None:
    """Measure steps by a clock of CPU time."""
    from tvm_distir.execution.serving import generation

    generation.time = SimpleNamespace(perf_counter=clock)


def on_threads(folder: Path, step: Any, weights: Any, is_wall: bool) -> dict[str, Any]:
    """Serve the requests in this process."""
    from tvm_distir.execution import PromptFile, engine, serve_prompts
    from tvm_distir.execution.serving import generation

    if not is_wall:
        use_cpu_clock(time.process_time)
    file, threads = PromptFile.read(folder / "requests.json"), engine("threads", dispatch="tvm")
    result = serve_prompts(step, file, weights, engine=threads)
    generation.time = time
    return result.arrays()


def by_torchrun(folder: Path, step: Any, weights: Any, devices: int, clock: str) -> dict[str, Any]:
    """Serve the requests in a job."""
    import tvm_distir as td

    td.deploy(step, folder / "step", weights, dispatch="tvm")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={devices}", __file__, MEMBER, str(folder), clock]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment)
    return dict(np.load(folder / "result.npz"))


def member(folder: Path, is_wall: bool) -> None:
    """Serve the requests as a process of a job; the first one writes the result."""
    from tvm_distir.execution import ServeOptions, engine, serve

    if not is_wall:
        use_cpu_clock(time.thread_time)
    options = ServeOptions(requests=folder / "requests.json")
    result = serve(folder / "step", options, engine("torch"))
    if result.process == 0:
        np.savez(folder / "result.npz", **result.generation.arrays())


def compare(engine: str, devices: int, is_wall: bool) -> bool:
    """Serve the trace, print what was compared, and return whether tokens and batches are equal."""
    step, weights = serving_step(devices)
    each_s = predicted_s(step, is_wall)
    asked = {**requests(), "step_s": each_s}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requests.json").write_text(json.dumps(asked), encoding="utf-8")
        if engine == "threads":
            result = on_threads(folder, step, weights, is_wall)
        else:
            clock = "wall" if is_wall else "cpu"
            result = by_torchrun(folder, step, weights, devices, clock)
    tokens = [[token for token in row if token >= 0] for row in result["tokens"].tolist()]
    equal = [
        tokens == most_likely(asked, tokens, weights)
        and [len(row) for row in tokens] == asked["tokens"],
        np.array_equal(result["steps"], simulated(asked)),
    ]
    ranks = devices if engine == "threads" and not is_wall else 1
    times_ms = 1e3 * result["times_s"][1:] / ranks
    figures = [
        ("median", "ms", 1e3 * each_s, np.median(times_ms)),
        ("quickest tenth", "ms", 1e3 * each_s, np.percentile(times_ms, 10)),
        ("total", "s", each_s * len(times_ms), times_ms.sum() / 1e3),
    ]
    print(f"{engine}, megatron tp={devices}: {len(tokens)} requests, {len(times_ms) + 1} steps")
    print(f"  tokens: {'equal' if equal[0] else 'DIFFERENT'}")
    print(f"  batches: {'equal' if equal[1] else 'DIFFERENT'}")
    for name, unit, mine, measured in figures:
        error = 100 * (mine / measured - 1)
        print(f"  {name}: {mine:.2f} {unit} of {measured:.2f} ({error:+.1f} %)", flush=True)
    return all(equal)


def main(arguments: list[str]) -> int:
    """Run the command."""
    if arguments[:1] == [MEMBER]:
        member(Path(arguments[1]), arguments[2] == "wall")
        return 0
    is_wall = "--wall" in arguments
    words = [w for w in arguments if w != "--wall"] or ["threads:1", "threads:2", "torch:2"]
    pairs = [word.split(":") for word in words]
    return int(not all([compare(engine, int(count), is_wall) for engine, count in pairs]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

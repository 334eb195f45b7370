#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Serve a tiny model on an engine, and compare its tokens and batches with what is expected.

Usage: scripts/checks/served_tokens.py [FAMILY] [STRATEGY] [AXIS=N,...] [ENGINE]

Requests go through the steps of ``entry=serve``, distributed and run on ``threads``, or on another
engine, such as ``torch``: in each step prompts are filled by a chunk, or the running requests
decode a token each. Where ``dp`` or ``ep`` divide requests, each is in one of the parts, and parts
with fewer requests in a step have idle rows. The tokens must be those of the model on a single
device, and each step must work on as many requests and tokens of prompts as the simulated engine
says. Prints both; exits 1 when they differ.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # processes of engines take it over

CHUNK, PAGE, COLUMNS, PAGES, MOST = 4, 4, 5, 16, 3
INPUTS, OUTPUTS = (4, 8, 4, 8), (5, 3, 6, 4)


class Steps:
    """Steps of a model that run, by their requests and tokens."""

    def __init__(self, model: str, strategy: str, mesh: dict[str, int], engine: str) -> None:
        self.model, self.strategy, self.mesh, self.engine = model, strategy, mesh, engine
        self.pools = math.prod(size for axis, size in mesh.items() if axis in ("dp", "ep"))
        self.known: dict[tuple[int, int], tuple] = {}

    def module(self, batch: int, seq: int) -> tuple:
        """Return the module of a step, its distributed form, and the names of its inputs."""
        import tvm_distir as td

        if (batch, seq) not in self.known:
            keys = f"entry=serve,batch={batch},seq={seq},past={COLUMNS * PAGE - seq}"
            keys += f",pools={self.pools}"
            mod = td.load_model(f"{self.model},{keys},page={PAGE},pages={PAGES}").mod
            plan = td.planning.make_plan(mod, self.strategy, self.mesh)
            names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
            self.known[batch, seq] = mod, td.distribute(mod, plan), names
        return self.known[batch, seq]

    def run(
        self, tokens: Any, pages: Any, lengths: Any, caches: dict[str, Any], weights: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Run a step on the engine; return the next token of each request, and the caches."""
        import tvm_distir as td

        _, local, names = self.module(*tokens.shape)
        inputs = {**weights, **caches, "input_ids": tokens, "pages": pages, "lengths": lengths}
        logits, *new = td.run(
            local,
            [inputs[name] for name in names],
            engine=self.engine,
            outputs="sharded",
            donate=["*_cache"],
        )
        return logits.whole().argmax(-1), dict(zip(caches, new, strict=True))


def served(steps: Steps, prompts: list, weights: dict) -> tuple[list[list[int]], list[list[int]]]:
    """Serve prompts, those that wait first; return tokens, and the sizes of steps."""
    pools = steps.pools
    mod, _, names = steps.module(pools, CHUNK)
    shapes = dict(zip(names, (p.ty for p in mod["main"].params), strict=True))
    caches = {
        name: np.zeros([int(n) for n in ty.shape], str(ty.dtype))
        for name, ty in shapes.items()
        if name.endswith("_cache")
    }
    free = [list(np.random.default_rng(pool).permutation(PAGES)) for pool in range(pools)]
    idle = [pages.pop() for pages in free]  # idle rows write there
    waiting, running, batches = list(range(len(prompts))), [], []
    tokens: list[list[int]] = [[] for _ in prompts]
    stored, table = [0] * len(prompts), np.zeros((len(prompts), COLUMNS), np.int32)

    def work(parts: dict[int, np.ndarray]) -> dict[int, int]:
        """Run a step on new tokens of requests; return the next token of each."""
        nonlocal caches
        by_pool = [[n for n in parts if n % pools == pool] for pool in range(pools)]
        count = max(map(len, by_pool))
        rows = [(*mine, *[-1] * (count - len(mine))) for mine in by_pool]
        new = next(iter(parts.values())).size
        ids = np.zeros((pools * count, new), np.int32)
        lengths = np.zeros(pools * count, np.int32)
        pages = np.repeat(np.array(idle, np.int32), count)[:, None].repeat(COLUMNS, 1)
        order = [n for mine in rows for n in mine]
        for row, n in enumerate(order):
            if n < 0:
                continue
            for column in range(-(-stored[n] // PAGE), -(-(stored[n] + new) // PAGE)):
                table[n, column] = free[n % pools].pop()
            ids[row], lengths[row], pages[row] = parts[n], stored[n], table[n]
        result, caches = steps.run(ids, pages, lengths, caches, weights)
        for n in parts:
            stored[n] += new
        return {n: int(token) for n, token in zip(order, result.tolist(), strict=True) if n >= 0}

    while waiting or running:
        budget = CHUNK * pools
        filling = [n for n in running if stored[n] < len(prompts[n])]
        budget -= CHUNK * len(filling)
        while waiting and budget > 0 and len(running) < MOST * pools:
            if filling and len(prompts[waiting[0]]) > budget:
                break
            filling.append(waiting.pop(0))
            running.append(filling[-1])
            budget -= CHUNK
        decoding = [] if filling else list(running)
        batches.append([len(decoding), CHUNK * len(filling)])
        parts = {n: np.array([tokens[n][-1]], np.int32) for n in decoding}
        parts |= {n: prompts[n][stored[n] : stored[n] + CHUNK] for n in filling}
        for n, token in work(parts).items():
            if stored[n] >= len(prompts[n]):
                tokens[n].append(token)
        for n in [n for n in running if len(tokens[n]) >= OUTPUTS[n]]:
            running.remove(n)
            free[n % pools] += table[n, : -(-stored[n] // PAGE)].tolist()
    return tokens, batches


def alone(model: str, prompts: list, weights: dict) -> list[list[int]]:
    """Return the tokens of the model forward on a single device, one request after the other."""
    import tvm_distir as td

    seq = COLUMNS * PAGE
    mod = td.load_model(f"{model},batch={len(prompts)},seq={seq}").mod
    local = td.distribute(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 1}))
    names = [str(name) for name in mod["main"].attrs["dist.param_names"]]
    ids = np.zeros((len(prompts), seq), np.int32)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    tokens: list[list[int]] = [[] for _ in prompts]
    for step in range(max(OUTPUTS)):
        (logits,) = td.run(local, [{**weights, "input_ids": ids}[name] for name in names])
        for n, prompt in enumerate(prompts):
            if step < OUTPUTS[n]:
                token = int(logits[n, len(prompt) + step - 1].argmax())
                tokens[n].append(token)
                ids[n, len(prompt) + step] = token
    return tokens


def simulated(pools: int) -> list[list[int]]:
    """Return the requests that decode, and the tokens of prompts, of each simulated step."""
    from tvm_distir.planning.serving.batching import SchedulerOptions, StepTimes
    from tvm_distir.planning.serving.engine_loop import EngineLoop
    from tvm_distir.planning.serving.workload import Requests

    count, axis = len(INPUTS), np.array([1, 100], np.int64)
    zeros, ones = np.zeros(count, np.int64), np.ones((2, 2), np.int64)
    sizes = (np.array(column, np.int64) for column in (INPUTS, OUTPUTS))
    requests = Requests(zeros, *sizes, zeros - 1, zeros)
    times = StepTimes(axis, axis, ones[None], axis, axis, ones[None])
    options = SchedulerOptions("prefill_first", CHUNK, MOST)
    ((_, result),) = EngineLoop(times, options, PAGES * pools, PAGE, pools=pools).serve(requests)
    return [[int(row[2]), int(row[3])] for row in result.steps]


def main(arguments: list[str]) -> int:
    """Run the command."""
    from tvm_distir.execution.verification.random_inputs import draw_inputs

    usual = ("llama3", "megatron", "tp=2", "threads")
    family, strategy, mesh, engine = (*arguments, *usual[len(arguments) :])
    sizes = dict(axis.split("=") for axis in mesh.split(","))
    drops = ",capacity_factor=0" if family in ("mixtral", "moe", "deepseek", "gpt_oss") else ""
    steps = Steps(
        f"zoo:{family}?size=tiny{drops}", strategy, {k: int(n) for k, n in sizes.items()}, engine
    )
    mod, _, names = steps.module(steps.pools, CHUNK)
    shapes = {"input_ids", "pages", "lengths", *(n for n in names if n.endswith("_cache"))}
    drawn = dict(zip(names, draw_inputs(mod, seed=1), strict=True))
    weights = {name: value for name, value in drawn.items() if name not in shapes}
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 500, n).astype(np.int32) for n in INPUTS]
    tokens, batches = served(steps, prompts, weights)
    want, expected = alone(steps.model, prompts, weights), simulated(steps.pools)
    print(f"{family}, {strategy} {mesh}, {engine}: {len(batches)} steps")
    print(f"tokens of requests: {'equal' if tokens == want else f'{tokens}, not {want}'}")
    print(f"order of batches: {'equal' if batches == expected else f'{batches}, not {expected}'}")
    return int(tokens != want or batches != expected)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Generate tokens for requests by the serving step of a decoder, in the batches of an engine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tvm import ir

from tvm_distir.execution.runtime.engines.base import Engine
from tvm_distir.execution.runtime.program.input_faults import bad_input
from tvm_distir.hardware import PICOSECONDS
from tvm_distir.planning import (
    EngineLoop,
    Requests,
    SchedulerOptions,
    StepTimes,
)

from .pooled_engines import run_together
from .prompts import Floats, Generation, Outputs, PromptFile, Sampling, Steps
from .session import Session

_INPUTS = ("input_ids", "pages", "lengths")
_REMEDY = "Distribute a decoder with entry=serve,seq=1."


def generate(
    program: Any,
    prompts: Sequence[Sequence[int]],
    tokens: int | Sequence[int],
    weights: Mapping[str, object] | str | os.PathLike[str] | None = None,
    *,
    scheduler: str = "continuous",
    sampling: Sampling = Sampling(),
    stop: int | None = None,
    times: StepTimes | None = None,
    arrivals_s: Sequence[float] | None = None,
    engine: str | Engine = "threads",
) -> Generation:
    """Generate tokens for requests with a distributed serving step.

    The step has a row for each token: those of a prompt are rows of one request, with the same
    pages, so that each step mixes prompts and requests that decode. The engine that
    :func:`tvm_distir.serve_analyze` simulates chooses the batches. A step works on ``batch``
    tokens; rows that are not needed write to a page of their own.

    Where data parallelism divides the caches into pools, each pool has such an engine, with its
    part of the rows: they are replicas, which get the requests in turn. The steps of all pools that
    have work run together; no pool waits for the clock of another.

    Parameters
    ----------
    program : IRModule, Deployment, str or path
        A decoder with ``entry=serve`` and ``seq=1``, distributed; or its deployed folder.
    prompts : sequence of sequence of int
        The tokens of each request.
    tokens : int or sequence of int
        The most new tokens of each request.
    weights : mapping of str to array, str or path, optional
        See :class:`tvm_distir.Session`.
    scheduler : str
        As ``--scheduler``; ``tokens`` is at most the rows of a pool, which is the default.
    sampling : Sampling
        Greedy unless it has a temperature.
    stop : int, optional
        The token that ends a request before its most tokens.
    times : StepTimes, optional
        The times by which the engine's clock advances; None: each step takes a picosecond.
    arrivals_s : sequence of float, optional
        When requests arrive by that clock, in seconds, in ascending order; None: all at the start.
    engine : str or Engine
        ``"threads"`` or ``"virtual"``.

    Raises
    ------
    EngineError
        DIST0602 for a program that is no such step, as modules of MLC-LLM, and requests that do
        not fit; and as :class:`tvm_distir.Session`.
    SimulationError
        DIST0761 for a scheduler that is not known, and requests that the caches do not hold.

    Examples
    --------
    >>> mod = td.zoo.llama(size="tiny", entry="serve", batch=4, seq=1, past=15)
    >>> dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 2}))
    >>> named = {str(p.name): p.ty for p in mod["main"].params[3:] if "cache" not in str(p.name)}
    >>> rng = np.random.default_rng(0)
    >>> weights = {
    ...     name: rng.normal(size=[int(n) for n in ty.shape]).astype("float32")
    ...     for name, ty in named.items()
    ... }
    >>> result = td.generate(dist, [[3, 1, 4], [1, 5]], tokens=[4, 2], weights=weights)
    >>> [len(tokens) for tokens in result.tokens], result.steps[:, 2:4].tolist()
    ([4, 2], [[0, 4], [1, 1], [2, 0], [1, 0]])
    """
    file = PromptFile(prompts, tokens, arrivals_s, scheduler, sampling, stop)
    return serve_prompts(program, file, weights, times, engine)


def serve_prompts(
    program: Any,
    file: PromptFile,
    weights: Mapping[str, object] | str | os.PathLike[str] | None = None,
    times: StepTimes | None = None,
    engine: str | Engine = "threads",
) -> Generation:
    """Generate tokens for the prompts of a file as :func:`generate` does."""
    for var, _ in program.functions.items() if isinstance(program, ir.IRModule) else ():
        if fnmatchcase(str(var.name_hint), "create_*_kv_cache"):
            problem = f"its caches are objects of TVM, which {var.name_hint} makes (MLC-LLM)"
            raise bad_input(problem, f"{_REMEDY} MLC-LLM's engine runs this module.")
    with Session(program, weights, engine=engine) as session:

        def call(inputs: Mapping[str, object]) -> Outputs:
            named: dict[str, Any] = {**inputs}
            return session.step(**named)

        return generated(Steps(session.inputs, session.shapes, call), file, times)


def generated(steps: Steps, file: PromptFile, times: StepTimes | None = None) -> Generation:
    """Generate tokens as :func:`generate` does, with steps that a session or a job runs."""
    prompts, tokens = file.prompts, file.tokens
    most = [tokens] * len(prompts) if isinstance(tokens, int) else list(tokens)
    sizes = _StepSizes.of(steps)
    requests = sizes.requests(prompts, most, file.arrivals_s)
    options = sizes.options(file.scheduler)
    loop = EngineLoop(times or _equal_times(file.step_s), options, sizes.pages - 1, sizes.page)
    generator = _Generator(steps, sizes, file)
    parts = [np.arange(len(requests))[pool :: sizes.pools] for pool in range(sizes.pools)]
    engines = [partial(loop.serve_steps, requests.some(part)) for part in parts if part.size]
    served = run_together(engines, generator.run_step)
    order = np.argsort(np.concatenate([np.arange(len(s)) for s in served]), kind="stable")
    pools = np.repeat(np.arange(len(served)), [len(s) for s in served])
    steps_of = np.concatenate(served)[order]
    return Generation(generator.tokens, steps_of, generator.times_s, pools[order])


class _StepSizes(NamedTuple):
    """Sizes of a serving step.

    Attributes
    ----------
    rows, columns : int
        Rows of a pool, and pages of each.
    pages, page : int
        Pages of a pool, and positions of each.
    pools : int
    """

    rows: int
    columns: int
    pages: int
    page: int
    pools: int

    @staticmethod
    def of(steps: Steps) -> _StepSizes:
        """Return the sizes of a serving step.

        Raises
        ------
        EngineError
            DIST0602 for another program, and steps of more tokens.
        """
        shapes = steps.shapes
        caches = [shape for name, shape in shapes.items() if name.endswith("_cache")]
        if sorted(steps.inputs) != sorted(_INPUTS) or not caches:
            raise bad_input(f"its inputs {steps.inputs} are not {_INPUTS}", _REMEDY)
        rows, tokens = shapes["input_ids"]
        pools, pages, page = caches[0][:3]
        if tokens != 1:
            raise bad_input(f"a row has {tokens} tokens", _REMEDY)
        return _StepSizes(rows // pools, shapes["pages"][1], pages, page, pools)

    def options(self, scheduler: str) -> SchedulerOptions:
        """Return the scheduler, with as many tokens as the step has rows where it states none."""
        options = SchedulerOptions.parse(scheduler)
        if "tokens=" not in scheduler:
            options = replace(options, tokens=self.rows)
        if options.tokens > self.rows:
            problem = f"a pool has {self.rows} rows, and the scheduler fills {options.tokens}"
            raise bad_input(problem, f"Use tokens={self.rows}, or a step with another batch=.")
        return options

    def requests(
        self,
        prompts: Sequence[Sequence[int]],
        most: Sequence[int],
        arrivals_s: Sequence[float] | None,
    ) -> Requests:
        """Return the requests of prompts, after a check of their lengths."""
        count = len(prompts)
        arrivals = [0.0] * count if arrivals_s is None else list(arrivals_s)
        if not count or len(most) != count or len(arrivals) != count:
            problem = (
                f"{count} prompts have {len(most)} numbers of tokens, {len(arrivals)} arrivals"
            )
            raise bad_input(problem, "Give one of each for each prompt, and at least one prompt.")
        for number, (prompt, tokens) in enumerate(zip(prompts, most, strict=True)):
            if not len(prompt) or tokens < 1 or len(prompt) + tokens > self.columns * self.page:
                problem = f"request {number} has {len(prompt)} tokens, and asks for {tokens}"
                remedy = f"A request of this step has from 2 to {self.columns * self.page} tokens."
                raise bad_input(problem, remedy)
        if arrivals != sorted(arrivals):
            raise bad_input("the arrivals are not in ascending order", "Sort the requests by them.")
        columns = (
            [round(second * PICOSECONDS) for second in arrivals],
            [len(prompt) for prompt in prompts], most, [-1] * count, [0] * count,
        )  # fmt: skip
        return Requests(*(np.array(column, np.int64) for column in columns))


def _equal_times(step_s: float) -> StepTimes:
    """Return the times of steps that take equally long: some seconds, or else a picosecond."""
    if step_s < 0:
        raise bad_input(f"step_s is {step_s}", "Give the seconds of a step.")
    axis = np.array([1, 2], np.int64)
    each = np.full((1, 2, 2), max(1, round(step_s * PICOSECONDS)), np.int64)
    return StepTimes(axis, axis, each, axis, axis, each)


class _Generator:
    """The steps of an engine that run: their pages, and the tokens that they generate."""

    def __init__(self, steps: Steps, sizes: _StepSizes, file: PromptFile) -> None:
        self._runner, self._sizes, self._file = steps, sizes, file
        self._prompts = [[int(token) for token in prompt] for prompt in file.prompts]
        # Rows that no token needs write to page 0 of their pool.
        self._free = [[*range(1, sizes.pages)] for _ in range(sizes.pools)]
        self._pages: dict[int, list[int]] = {}
        self.tokens: list[list[int]] = [[] for _ in file.prompts]
        self.times_s: list[float] = []

    def run_step(self, parts: Mapping[int, Sequence[tuple[int, ...]]]) -> dict[int, list[int]]:
        """Run a step of pools, and take the next token of each request whose cache is full.

        Parameters and results are those of :meth:`tvm_distir.planning.EngineLoop.serve_steps`, for
        the pools of which the step has tokens.
        """
        count = self._sizes.pools
        works = {
            pool: [(count * number + pool, cached, new) for number, cached, new in of_pool]
            for pool, of_pool in parts.items()
        }
        for pool, work in works.items():
            current = {number for number, cached, _ in work if cached}
            # The others of the pool have ended, or compute their tokens again.
            for number in [n for n in self._pages if n % count == pool and n not in current]:
                self._free[pool] += self._pages.pop(number)
        logits = self._logits(works)
        return {pool: self._ends(work, logits[pool]) for pool, work in works.items()}

    def _ends(self, work: Sequence[tuple[int, ...]], logits: Floats) -> list[int]:
        """Take the next tokens of a pool; return the places of the requests that they end."""
        row, ends = 0, []
        for number, cached, count in work:
            row += count
            tokens = self.tokens[number]
            if count and cached + count == len(self._prompts[number]) + len(tokens):
                tokens.append(self._file.sampling.token(logits[row - 1], number, len(tokens)))
                if tokens[-1] == self._file.stop:
                    ends.append(number // self._sizes.pools)
        return ends

    def _logits(self, works: Mapping[int, Sequence[tuple[int, ...]]]) -> Floats:
        """Return the logits of each token of a step: (pools, rows, vocab)."""
        rows, columns, _, page, pools = self._sizes
        ids, lengths = np.zeros((pools, rows), np.int32), np.zeros((pools, rows), np.int32)
        tables = np.zeros((pools, rows, columns), np.int32)
        for pool, work in works.items():
            row = 0
            for number, cached, count in (part for part in work if part[2]):
                pages = self._pages.setdefault(number, [])
                known = self._prompts[number] + self.tokens[number]
                while len(pages) < -(-(cached + count) // page):
                    pages.append(self._free[pool].pop())
                ids[pool, row : row + count] = known[cached : cached + count]
                lengths[pool, row : row + count] = range(cached, cached + count)
                tables[pool, row : row + count, : len(pages)] = pages
                row += count
        inputs = {
            "input_ids": ids.reshape(-1, 1),
            "pages": tables.reshape(-1, columns),
            "lengths": lengths.ravel(),
        }
        start_s = time.perf_counter()
        (logits,) = self._runner.call(inputs)
        self.times_s += [time.perf_counter() - start_s] * len(works)
        return np.asarray(logits, np.float32).reshape(pools, rows, -1)

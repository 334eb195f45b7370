# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define prompts, how their tokens are chosen, and what is generated for them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvm_distir.support import Count, EngineError, PositiveCount, read_json, read_model

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Outputs = Sequence[npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Sampling:
    """Choice of the next token from logits.

    Attributes
    ----------
    temperature : float
        0 takes the most likely token.
    top_p : float
        The next token is one of the most likely ones that together have this probability
        (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration").
    seed : int
        A token depends on the seed, the number of the request and that of the token, and not on the
        requests that share its steps.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def token(self, logits: Floats, request: int, number: int) -> int:
        """Return a token: the given number of a request, from logits (vocab,)."""
        if self.temperature <= 0:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        order = np.argsort(-scaled, kind="stable")
        weights = np.exp(scaled[order] - scaled[order[0]])
        sums = np.cumsum(weights / weights.sum())
        count = int(np.searchsorted(sums, min(self.top_p, sums[-1]))) + 1
        draw = np.random.default_rng([self.seed, request, number]).random() * sums[count - 1]
        return int(order[np.searchsorted(sums[:count], draw, side="right")])


@dataclass(frozen=True)
class PromptFile:
    """Requests, and how they are served: the keys of a file of ``run --requests``.

    Attributes have the names and meanings of the parameters of :func:`tvm_distir.generate`, but
    for ``step_s``: the seconds of each step by the engine's clock, 0 for a picosecond.
    """

    prompts: Sequence[Sequence[Count]]
    tokens: PositiveCount | Sequence[PositiveCount]
    arrivals_s: Sequence[float] | None = None
    scheduler: str = "continuous"
    sampling: Sampling = Sampling()
    stop: Count | None = None
    step_s: float = 0.0

    @staticmethod
    def read(path: str | os.PathLike[str]) -> PromptFile:
        """Read a JSON file.

        Raises
        ------
        EngineError
            DIST0602 for a file that cannot be read, and keys that are not known, missing or wrong.
        """
        location = os.fspath(path)
        return read_model(PromptFile, read_json(location, _refuse), location, _refuse)


@dataclass(frozen=True)
class Generation:
    """Generated tokens, and the steps that made them.

    Attributes
    ----------
    tokens : list of list of int
        The new tokens of each request.
    steps : int64 array (steps, 5)
        Begin and duration by the clock of the engine, in picoseconds; requests that decode, tokens
        of prompts, and pages in use. Those of pools that run together follow each other.
    times_s : list of float
        The measured time of each step, in seconds.
    pools : int64 array (steps,)
        The pool of the caches of each step.
    """

    tokens: list[list[int]]
    steps: Ints
    times_s: list[float]
    pools: Ints

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the content as arrays; tokens, int32 (requests, most tokens), end with -1."""
        tokens = np.array(list(itertools.zip_longest(*self.tokens, fillvalue=-1)), np.int32).T
        times_s = np.array(self.times_s)
        return {"tokens": tokens, "steps": self.steps, "times_s": times_s, "pools": self.pools}


@dataclass(frozen=True)
class Steps:
    """A program that runs step by step, in this process or in a job.

    Attributes
    ----------
    inputs : tuple of str
        The names of the inputs of each step.
    shapes : mapping of str to tuple of int
        The full shape of each input, weights and state included.
    call : callable
        A function from inputs by name to the outputs that are no state.
    """

    inputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    call: Callable[[Mapping[str, object]], Outputs]


def _refuse(location: str, problem: str, remedy: str) -> EngineError:
    return EngineError("DIST0602", problem, location=location, remedy=remedy)

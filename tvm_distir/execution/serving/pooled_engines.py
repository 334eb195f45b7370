# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the steps of several engines together: those of the pools of caches of data parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

Parts = list[tuple[int, ...]]
Engine = Callable[[Callable[[Parts], list[int]]], npt.NDArray[np.int64]]
"""Serves requests by a function that runs a step, and returns its steps."""


def run_together(
    engines: Sequence[Engine], run: Callable[[Mapping[int, Parts]], Mapping[int, list[int]]]
) -> list[npt.NDArray[np.int64]]:
    """Run the first steps of all engines together, then the second ones, and so on.

    Engines decide in threads of their own; ``run`` is called in the thread of the caller, in the
    same order in each process of a job.

    Parameters
    ----------
    engines : sequence of callable
    run : callable
        A function from what the step works on, by the numbers of the engines that have a step
        left, to the result of each.

    Returns
    -------
    steps : list of int64 array
        The result of each engine.

    Raises
    ------
    Exception
        The first failure of an engine or a step; all engines have then ended.
    """
    requested: SimpleQueue[tuple[int, Parts | None]] = SimpleQueue()
    answers: list[SimpleQueue[list[int] | BaseException]] = [SimpleQueue() for _ in engines]

    def step(number: int, parts: Parts) -> list[int]:
        requested.put((number, parts))
        answer = answers[number].get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def serve(number: int) -> npt.NDArray[np.int64]:
        try:
            return engines[number](lambda parts: step(number, parts))
        finally:
            requested.put((number, None))

    with ThreadPoolExecutor(len(engines)) as threads:
        futures = [threads.submit(serve, number) for number in range(len(engines))]
        left = set(range(len(engines)))
        try:
            while left:
                for number, parts in (steps := dict(requested.get() for _ in sorted(left))).items():
                    if parts is None:
                        left.discard(number)
                        futures[number].result()
                works = {n: parts for n, parts in sorted(steps.items()) if parts is not None}
                for number, answer in run(works).items() if works else ():
                    answers[number].put(answer)
        except BaseException as failure:
            for number in left:
                answers[number].put(failure)
            raise
    return [future.result() for future in futures]

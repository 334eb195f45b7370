# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the requests of a workload: arrivals, lengths, and shared prefixes.

The text of a workload is ``ARRIVALS[,key=value...]``: ``poisson:RATE`` (requests per second),
``burst`` (all at once), ``closed:USERS`` (a user asks again when it has its answer), or a CSV
file with the columns ``arrival_s``, ``input_tokens``, ``output_tokens`` and perhaps ``prefix_id``
and ``prefix_tokens``. Keys: ``in`` and ``out``, the lengths (``1024``, ``uniform:16-512`` or
``lognormal:MEDIAN:SIGMA``); ``prefix``, tokens that requests share; ``count``, the requests of a
run that ends with them, all of which are counted; ``seed``.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tvm_distir.hardware import PICOSECONDS

from .lengths import Ints, Lengths, integer_of, positive_of, workload_fault

CLOCK_S = np.iinfo(np.int64).max / PICOSECONDS
"""The seconds that the clock of a run has."""
POISSON, BURST, CLOSED, TRACE = "poisson", "burst", "closed", "trace"
_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


@dataclass(frozen=True)
class Requests:
    """Requests of an engine, in order of arrival.

    Attributes
    ----------
    arrival_ps, input_tokens, output_tokens : int64 arrays (requests,)
    prefix_id, prefix_tokens : int64 arrays (requests,)
        Requests of the same number, -1 for none, begin with the same tokens.
    """

    arrival_ps: Ints
    input_tokens: Ints
    output_tokens: Ints
    prefix_id: Ints
    prefix_tokens: Ints

    def __len__(self) -> int:
        return int(self.arrival_ps.size)

    @property
    def rate_per_s(self) -> float | None:
        """Return the requests that arrive per second; None where all arrive at once."""
        span = int(self.arrival_ps[-1] - self.arrival_ps[0]) if len(self) else 0
        return (len(self) - 1) * PICOSECONDS / span if span else None

    def of_one_token(self) -> Requests:
        """Return the requests with answers of one token, which ends with their prompt."""
        return replace(self, output_tokens=np.ones_like(self.output_tokens))

    def some(self, which: Ints) -> Requests:
        """Return some of the requests."""
        return Requests(*(column[which] for column in vars(self).values()))


@dataclass(frozen=True)
class Workload:
    """Workload of an engine.

    Attributes
    ----------
    kind : str
        ``poisson``, ``burst``, ``closed`` or ``trace``.
    rate : float
        Requests per second of ``poisson``.
    users : int
        Users of ``closed``.
    input_length, output_length : str
        Texts of lengths.
    prefix_tokens : int
        Tokens that all requests begin with.
    seed : int
    path : str
        The file of ``trace``.
    count : int
        The requests of a run, all of which are counted; 0: as many as make the run steady.
    """

    kind: str
    rate: float = 0.0
    users: int = 0
    input_length: str = "1024"
    output_length: str = "1024"
    prefix_tokens: int = 0
    seed: int = 0
    path: str = ""
    count: int = 0

    @staticmethod
    def parse(text: str) -> Workload:
        """Read a workload from text.

        Raises
        ------
        SimulationError
            DIST0761.
        """
        head, *items = text.split(",")
        kind, _, value = head.partition(":")
        keys: dict[str, str] = {}
        for item in items:
            key, equals, number = item.partition("=")
            if not equals or key not in ("in", "out", "prefix", "count", "seed") or key in keys:
                raise workload_fault(
                    f'"{item}" is no key of a workload',
                    text,
                    "Use in=, out=, prefix=, count= or seed=.",
                )
            keys[key] = number
        seed, prefix, count = (
            integer_of(keys.get(key, "0"), text) for key in ("seed", "prefix", "count")
        )
        lengths = keys.get("in", "1024"), keys.get("out", "1024")
        work = Workload(BURST, 0.0, 0, *lengths, prefix, seed, count=count)
        if kind == POISSON:
            work = replace(work, kind=POISSON, rate=positive_of(value, text))
        elif kind == CLOSED:
            work = replace(work, kind=CLOSED, users=integer_of(value, text))
            if not work.users:
                raise workload_fault("there is no user", text, "Give closed:USERS, 1 or more.")
        elif head.endswith(".csv"):
            work = replace(work, kind=TRACE, path=head)
        elif head != BURST:
            raise workload_fault(
                f'unknown arrivals "{head}"',
                text,
                "Use poisson:RATE, burst, closed:USERS or a CSV.",
            )
        if work.kind != TRACE:
            for length in (work.input_length, work.output_length):
                Lengths.parse(length)
        return work

    @property
    def text(self) -> str:
        """Return the text of the workload, which :meth:`parse` reads."""
        if self.kind == TRACE:
            return self.path
        arrivals = {POISSON: f":{self.rate:g}", CLOSED: f":{self.users}"}.get(self.kind, "")
        keys = {"prefix": self.prefix_tokens, "count": self.count, "seed": self.seed}
        more = "".join(f",{key}={number}" for key, number in keys.items() if number)
        return f"{self.kind}{arrivals},in={self.input_length},out={self.output_length}{more}"

    @cached_property
    def trace(self) -> Requests:
        """Return the requests of ``trace``."""
        return read_trace(self.path)

    @cached_property
    def mean_input(self) -> float:
        """Return the mean tokens of a prompt."""
        if self.kind == TRACE:
            return float(self.trace.input_tokens.mean())
        return Lengths.parse(self.input_length).mean

    @cached_property
    def mean_output(self) -> float:
        """Return the mean tokens of an answer."""
        if self.kind == TRACE:
            return float(self.trace.output_tokens.mean())
        return Lengths.parse(self.output_length).mean

    @property
    def most_tokens(self) -> tuple[int, int]:
        """Return the most tokens of a prompt, and of a request; 0 where they have no bound."""
        if self.kind == TRACE:
            inputs, outputs = self.trace.input_tokens, self.trace.output_tokens
            return int(inputs.max()), int((inputs + outputs).max())
        prompt, answer = (Lengths.parse(x).most for x in (self.input_length, self.output_length))
        return prompt, prompt + answer if prompt and answer else 0

    @property
    def rate_per_s(self) -> float | None:
        """Return the mean rate of arrivals; None for bursts and closed loops."""
        if self.kind == TRACE:
            return self.trace.rate_per_s
        return self.rate if self.kind == POISSON else None

    def at_rate(self, rate: float) -> Workload:
        """Return the workload with Poisson arrivals of another rate, and the same other draws."""
        return replace(self, kind=POISSON, rate=rate, users=0)

    def at_once(self, count: int) -> Requests:
        """Return so many requests that all arrive at the beginning; those of a trace repeat."""
        known = self.trace if self.kind == TRACE else replace(self, kind=BURST).draw(count)
        some = known.some(np.arange(count) % len(known))
        return replace(some, arrival_ps=np.zeros(count, np.int64))

    def draw(self, count: int) -> Requests:
        """Return requests; the same seed gives the same ones, at any rate.

        The last of N Poisson arrivals is at N / rate, so that a run has the stated rate and not one
        that differs from it by chance: given the time of the last one, the others are independent
        of each other and uniform (Ross 1996, "Stochastic processes", th. 2.3.1).

        Raises
        ------
        SimulationError
            DIST0761 for arrivals over a longer time than the clock has.
        """
        if self.kind == TRACE:
            return self.trace
        streams = [np.random.default_rng([self.seed, k]) for k in range(3)]
        arrival = np.zeros(count)
        if self.kind == POISSON:
            with np.errstate(over="ignore"):
                arrival = np.cumsum(streams[0].exponential(1.0, count))
                arrival *= count / self.rate / arrival[-1]
        inputs, outputs = (
            Lengths.parse(text).draw(count, rng)
            for text, rng in zip((self.input_length, self.output_length), streams[1:], strict=True)
        )
        prefix = np.minimum(self.prefix_tokens, inputs)
        number = np.where(prefix > 0, 0, -1)
        times = _picoseconds(arrival, f"poisson:{self.rate:g}", "Give a higher rate, or count=.")
        return Requests(times, inputs, outputs, number.astype(np.int64), prefix)


def read_trace(path: str) -> Requests:
    """Read requests from a CSV file.

    Raises
    ------
    SimulationError
        DIST0761 for a file that is missing, or lacks a column or a number.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise workload_fault("the trace cannot be read", path, "Give a CSV file.") from error
    try:
        times = [float(row["arrival_s"]) for row in rows]
        tokens = [[int(row[name]) for name in _COLUMNS[1:]] for row in rows]
        prefixes = [
            [int(row.get("prefix_id") or -1), int(row.get("prefix_tokens") or 0)] for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        remedy = f"It needs the columns {', '.join(_COLUMNS)}, with numbers."
        raise workload_fault("a row of the trace cannot be read", path, remedy) from error
    if not rows or min(min(pair) for pair in tokens) < 1:
        raise workload_fault("the trace has no requests, or empty ones", path, "Add rows.")
    order = np.argsort(times, kind="stable")
    remedy = "Give seconds since the beginning of the trace."
    arrival = _picoseconds(np.array(times)[order], path, remedy)
    sizes, shared = np.array(tokens, np.int64)[order], np.array(prefixes, np.int64)[order]
    return Requests(arrival, sizes[:, 0], sizes[:, 1], shared[:, 0], shared[:, 1])


def _picoseconds(times_s: npt.NDArray[np.float64], location: str, remedy: str) -> Ints:
    """Return seconds as picoseconds, of which half of the clock may be arrivals."""
    most = CLOCK_S / 2
    if not (times_s >= 0).all() or not (times_s <= most).all():
        problem = f"requests do not arrive within the {most:.2g} s that the clock has"
        raise workload_fault(problem, location, remedy)
    return np.rint(times_s * PICOSECONDS).astype(np.int64)

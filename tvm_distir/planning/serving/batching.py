# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Steps of a serving engine: the scheduler, and the times of its steps.

Schedulers: ``continuous`` decodes every running request in each step, and fills caches with what
is left of the tokens of a step (Agrawal et al. 2024, "Sarathi-Serve"); ``prefill_first`` fills the
caches of waiting requests in steps of their own, before others go on (Yu et al. 2022, "Orca");
``static`` admits requests when all before have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tvm_distir.support import nearest

from .lengths import Ints, workload_fault

if TYPE_CHECKING:
    from tvm_distir.hardware import System

    from .surface import Surface

SCHEDULERS = ("continuous", "prefill_first", "static")
_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_CONTEXTS = (0, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_TOKENS = (2, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
           8192, 12288, 16384, 32768)  # fmt: skip
_PASTS = (0, 1024, 4096, 16384, 65536)


@dataclass(frozen=True)
class SchedulerOptions:
    """Scheduler of an engine.

    Attributes
    ----------
    kind : str
        One of :data:`SCHEDULERS`.
    tokens : int
        The most tokens of a step, of each part of data parallelism.
    requests : int
        The most requests that run at a time, of each part.
    step_overhead_us : float, optional
        What the host takes between two steps; None: the constant ``serving_step_us`` of the system.
    """

    kind: str = "continuous"
    tokens: int = 2048
    requests: int = 256
    step_overhead_us: float | None = None

    @property
    def text(self) -> str:
        """Return the scheduler with the limits of a step."""
        return f"{self.kind}:tokens={self.tokens},requests={self.requests}"

    @staticmethod
    def parse(text: str) -> SchedulerOptions:
        """Read ``KIND[:tokens=N,requests=N,step_overhead_us=X]``.

        Raises
        ------
        SimulationError
            DIST0761.
        """
        kind, _, rest = text.partition(":")
        if kind not in SCHEDULERS:
            raise workload_fault(f'unknown scheduler "{kind}"', text, nearest(kind, SCHEDULERS))
        options = SchedulerOptions(kind)
        for item in rest.split(",") if rest else []:
            key, _, value = item.partition("=")
            try:
                if key == "tokens":
                    options = replace(options, tokens=int(value))
                elif key == "requests":
                    options = replace(options, requests=int(value))
                elif key == "step_overhead_us":
                    options = replace(options, step_overhead_us=float(value))
                else:
                    raise ValueError(key)
            except ValueError as error:
                known = "Use tokens=N, requests=N or step_overhead_us=X."
                raise workload_fault(f'"{item}" is no option', text, known) from error
        if min(options.tokens, options.requests) < 1 or (options.step_overhead_us or 0.0) < 0:
            raise workload_fault("an option is not positive", text, "Give positive numbers.")
        return options

    def of_system(self, system: System) -> SchedulerOptions:
        """Return the options with the overhead of a system where none is stated."""
        if self.step_overhead_us is not None:
            return self
        return replace(self, step_overhead_us=system.constant("serving_step_us"))


@dataclass(frozen=True)
class StepTimes:
    """Tables of the times of steps, between which an engine interpolates.

    Attributes
    ----------
    batches, contexts : int64 arrays
        Axes of ``decode_ps``.
    decode_ps : int64 array (2 * stages - 1, batches, contexts)
        Of each part: see :class:`.surface.Surface`.
    tokens, pasts : int64 arrays
        Axes of ``prefill_ps``.
    prefill_ps : int64 array (2 * stages - 1, tokens, pasts)
    gain : float
        Tokens that a request gains by a step that decodes.
    """

    batches: Ints
    contexts: Ints
    decode_ps: Ints
    tokens: Ints
    pasts: Ints
    prefill_ps: Ints
    gain: float = 1.0

    @staticmethod
    def of(surface: Surface) -> StepTimes:
        """Tabulate a surface."""
        axes = [np.array(axis, np.int64) for axis in (_BATCHES, _CONTEXTS, _TOKENS, _PASTS)]
        decode, prefill = (
            evaluate(*(x.ravel() for x in np.meshgrid(a, b, indexing="ij"))).reshape(
                -1, a.size, b.size
            )
            for evaluate, a, b in (
                (surface.decode_parts_ps, axes[0], axes[1]),
                (surface.prefill_parts_ps, axes[2], axes[3]),
            )
        )
        return StepTimes(axes[0], axes[1], decode, axes[2], axes[3], prefill)

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages."""
        return (len(self.decode_ps) + 1) // 2

    def with_host(self, request_us: float) -> StepTimes:
        """Return the times with those of the host for each request of a step that decodes.

        They are added in the last stage, which samples tokens. Parts of data parallelism have a
        host each, which has the requests of its part alone.
        """
        requests = np.rint(self.batches * request_us * 1e6).astype(np.int64)
        decode = self.decode_ps.copy()
        decode[-1] += requests[:, None]
        return replace(self, decode_ps=decode)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Surfaces of serving steps: CPU seconds to fit one, and steps per second afterwards.

The sizes of steps are drawn uniformly: 1 to 1,024 requests with up to 131,072 tokens in caches that
decode, and prompts of 2 to 32,768 tokens behind up to 65,536. The steps with memory are those that
decode, as ``td.sweep`` predicts them. The digest of all times shows whether two versions agree.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import numpy as np
from measure import parser, print_setting, table

from tvm_distir.hardware import System
from tvm_distir.planning.serving.served_model import ServedModel
from tvm_distir.planning.serving.surface import Surface

STEPS = 100_000
SMALL, LARGE = "zoo:llama3?size=3.1-8b", "zoo:llama3?size=3.1-70b"
PLANS: tuple[tuple[str, str, dict[str, int], str], ...] = (
    (SMALL, "megatron", {"tp": 2}, "h100-serving"),
    (SMALL, "megatron", {"tp": 2}, "dgx-h100"),
    (LARGE, "megatron", {"tp": 8}, "h100-serving"),
    (LARGE, "pipeline+megatron", {"pp": 2, "tp": 4}, "h100-serving"),
    (LARGE, "pipeline+megatron", {"pp": 4, "tp": 2}, "h100-serving"),
)


def fit_s(surface: Surface) -> float:
    """Return the CPU seconds of the fits for steps that decode and that fill caches."""
    start = time.process_time()
    surface.decode_s(8, 100)
    surface.prefill_s(64)
    return time.process_time() - start


def rate(work: Callable[[], object], repeat: int) -> str:
    """Return the steps per CPU second of the fastest of several runs."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return f"{STEPS / min(times):,.0f}"


def main() -> None:
    """Print the table."""
    options = parser(__doc__).parse_args()
    print_setting()
    random = np.random.default_rng(0)
    requests, context, tokens, past = (
        random.integers(low, high, STEPS, endpoint=True)
        for low, high in ((1, 1024), (0, 131072), (2, 32768), (0, 65536))
    )
    rows = []
    fit_s(
        Surface(
            ServedModel("zoo:llama3?size=tiny", "megatron", {"tp": 1}, System.load(PLANS[0][-1]))
        )
    )
    for model, strategy, mesh, system in PLANS:
        served = ServedModel(model, strategy, mesh, System.load(system))
        surface = Surface(served)
        spent_s = min(fit_s(Surface(served)), fit_s(surface))
        parts = (surface.decode_parts_ps(requests, context), surface.prefill_parts_ps(tokens, past))
        digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:12]
        works: list[Callable[[], object]] = [
            lambda: surface.decode_ps(requests, context),
            lambda: surface.prefill_ps(tokens, past),
        ]
        if served.stages == 1:
            works.append(lambda: surface.costs(requests, context))
        rates = [rate(work, options.repeat) for work in works]
        name = f"{model.partition('=')[2]}, `{served.plan_text}`, `{system}`"
        rows.append([name, f"{spent_s:.1f}", *rates, *["-"] * (3 - len(rates)), digest])
    table(["plan", "fit, s", "decode/s", "prefill/s", "with memory/s", "digest"], rows)


if __name__ == "__main__":
    main()

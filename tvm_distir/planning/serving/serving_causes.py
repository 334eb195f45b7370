# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Say why service levels are broken, and what may help."""

from __future__ import annotations

from .levels import ServiceLevels, ServiceSummary
from .serving_run import ServingSetup

_QUEUE, _BESIDE = 0.5, 0.25


def causes_of(
    deployment: ServingSetup,
    levels: ServiceLevels,
    summary: ServiceSummary,
    alone_ttft_s: float,
    alone_tpot_s: float,
    decode_s: float,
) -> tuple[list[str], list[str]]:
    """Return why levels are broken, and what to change first."""
    broken = summary.broken(levels)
    causes, advice = [], []
    if summary.overloaded and summary.offered_per_s and summary.capacity_per_s:
        share = summary.offered_per_s / summary.capacity_per_s
        causes.append(f"requests arrive {share:.3g} times as fast as they can be served")
        advice.append(
            f"use {share:.3g} times the replicas, or lower the rate below "
            f"{summary.capacity_per_s:.3g} requests/s"
        )
    elif "TTFT" in broken:
        if alone_ttft_s > (levels.ttft_s or 0.0):
            causes.append(f"a prompt alone takes {alone_ttft_s * 1e3:.0f} ms to its first token")
            advice.append("divide prompts among more devices of a replica (a larger tp)")
        elif summary.queue.p90_s > _QUEUE * summary.ttft.p90_s:
            share = summary.queue.p90_s / summary.ttft.p90_s
            causes.append(f"requests wait in the queue for {share:.0%} of the time to first token")
            advice.append("add replicas, or lower the rate")
        else:
            causes.append("prompts share steps with others that decode")
            advice.append("raise the tokens of a step, or use devices apart for prefill")
    if "TPOT" in broken:
        beside = summary.tpot.mean_s - decode_s
        if alone_tpot_s > (levels.tpot_s or 0.0):
            causes.append(f"a step for one request takes {alone_tpot_s * 1e3:.1f} ms")
            advice.append("use more devices in a replica, or a narrower type of weights")
        elif beside > _BESIDE * summary.tpot.mean_s:
            share = beside / summary.tpot.mean_s
            causes.append(
                f"prompts beside those that decode take {share:.0%} of the time per token"
            )
            advice.append("lower the tokens of a step, or use devices apart for prefill")
        else:
            causes.append(f"{summary.decoding:.0f} requests decode together")
            advice.append("lower the requests of a step, or add replicas")
    if summary.preemptions:
        causes.append(f"memory: {summary.preemptions} requests gave up their pages")
        advice.append("use caches of float8 (kv_dtype), fewer requests at a time, or more devices")
    if "e2e" in broken and not causes:
        causes.append("the time to the last token is that of its tokens")
        advice.append("lower the time per token: fewer requests of a step, or more devices")
    return causes, advice

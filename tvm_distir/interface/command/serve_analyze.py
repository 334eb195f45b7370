# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir serve-analyze``, and the options of ``tvm-distir search --serve``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError, option, parse_count, parse_mesh, parse_number

from .options import add_options, read_options, read_step
from .outputs import Outputs
from .resumable import begin
from .terminal import put, say, with_warnings


def _seconds(text: str, option: str) -> float:
    """Read a time with its unit, such as ``500ms`` (UsageError DIST0152)."""
    for unit, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if text.endswith(unit):
            return parse_number(text.removesuffix(unit), option) * factor
    raise UsageError(
        "DIST0152", f'"{text}" has no unit', place=option, remedy="Write 500ms, or 0.5s."
    )


def _tokens(text: str, option: str) -> int:
    """Read a number of tokens, or 0."""
    return 0 if text == "0" else parse_count(text, option)


def _words(text: str, _option: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _counts(text: str, option: str) -> list[int]:
    return [parse_count(word, option) for word in text.split(",")]


@dataclass(frozen=True)
class ServingOptions:
    """Options of a workload, of service levels, and of an engine.

    Parameters
    ----------
    workload : str
        poisson:RATE, burst, closed:USERS or a CSV file, with in=, out=, prefix=, seed=.
    ttft : float, optional
        Set the 90th percentile of the TTFT.
    tpot : float, optional
        Set the 90th percentile of the TPOT.
    e2e : float, optional
        Set that of the time to the last token.
    router : str
        Send requests to replicas by round_robin (default), or to the one with the fewest in flight
        (least_requests).
    draft : str
        Set the draft model.
    draft_tokens : int
        Propose K tokens by the draft model.
    acceptance : float
        Set the share of accepted tokens.
    """

    workload: str = option("serve", "W", usual="poisson:1")
    ttft: float | None = option("serve", "500ms", _seconds)
    tpot: float | None = option("serve", "30ms", _seconds)
    e2e: float | None = option("serve", "20s", _seconds)
    router: str = option("serve", "R", usual="round_robin")
    draft: str = option("serve", "MODEL", usual="")
    draft_tokens: int = option("serve", "K", _tokens, usual="0")
    acceptance: float = option("serve", "A", parse_number, usual="0.7")

    @property
    def levels(self) -> Any:
        """Return the service levels."""
        from tvm_distir.planning import ServiceLevels

        return ServiceLevels(self.ttft, self.tpot, self.e2e)

    def outputs(self) -> Outputs:
        """Return the files of a command, which may read a trace of requests."""
        return Outputs({"--workload": self.workload if self.workload.endswith(".csv") else None})


@dataclass(frozen=True)
class AnalyzedServing(ServingOptions):
    """Options of ``serve-analyze``.

    Parameters
    ----------
    strategy : str
        Set the strategy (default: megatron).
    mesh : mapping of str to int
        Set the mesh of a replica.
    scheduler : str
        continuous (default), prefill_first or static, with tokens=N, requests=N and
        step_overhead_us=X.
    replicas : int
        Set the number of replicas.
    kv_dtype : str
        Set the dtype of caches.
    weights : str
        Set the type of weights: none (default), fp8, nvfp4, int4, ... (a kernel profile).
    prefill_mesh : mapping of str to int, optional
        Fill caches on devices apart, with this mesh.
    prefill_replicas : int
        Set the number of prefill replicas.
    prefill_scheduler : str
        Set the scheduler of the devices apart (default: that of --scheduler).
    trace : str, optional
        Write the requests and the steps of each replica as a trace that Perfetto opens.
    """

    strategy: str = option("serve", "NAME", usual="megatron")
    mesh: Mapping[str, int] = option("serve", "tp=4", parse_mesh)
    scheduler: str = option("serve", "KIND[:k=v,...]", usual="continuous")
    replicas: int = option("serve", "N", parse_count, usual="1")
    kv_dtype: str = option("serve", "T", usual="")
    weights: str = option("serve", "T", flag="--quantize", usual="none")
    prefill_mesh: Mapping[str, int] | None = option("serve", "tp=2", parse_mesh)
    prefill_replicas: int = option("serve", "N", parse_count, usual="1")
    prefill_scheduler: str = option("serve", "KIND[:k=v,...]", usual="")
    trace: str | None = option("serve", "FILE.json")


@dataclass(frozen=True)
class SearchedServing(ServingOptions):
    """Options of ``search --serve``.

    Parameters
    ----------
    apart : bool
        Try devices apart for prefill and decode.
    kv_dtypes : list of str
        Try dtypes of caches, such as bfloat16,float8_e4m3fn.
    weights : list of str
        Try types of weights, such as none,fp8,int4.
    stages : list of int
        Try numbers of pipeline stages of a replica (default: 1).
    picture : str, optional
        Draw the front of --serve.
    """

    apart: bool = option("serve", default=False)
    kv_dtypes: list[str] = option("serve", "T,T", _words, usual="")
    weights: list[str] = option("serve", "T,T", _words, flag="--quantize", usual="none")
    stages: list[int] = option("serve", "1,2", _counts, usual="1")
    picture: str | None = option("serve", "FILE.svg")


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "serve-analyze",
        help="Predict how a model is served: latencies, throughput, memory, cost.",
        description="Serve requests by a simulated engine with paged caches: latencies and their "
        "percentiles, throughput, use of the caches, what breaks the service levels.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="A decoder: zoo:NAME?key=value,... or a config.json"
    )
    add_options(parser, StepOptions, names=("system", "kernels", "price"), required=("system",))
    add_options(parser, AnalyzedServing, required=("mesh",))
    parser.add_argument("--json", action="store_true", help="Print the report as JSON.")
    parser.set_defaults(registers=True, run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve the workload and print the report."""
    serving = read_options(arguments, AnalyzedServing)
    step = read_step(arguments, StepOptions, ("strategy", "mesh"))
    outputs = serving.outputs()
    trace = outputs.promise(serving.trace, "--trace")
    system = begin(step, "--strategy", serving.strategy)
    from tvm_distir.planning import request_trace, serve_analyze

    positional = (*("strategy", "mesh", "workload"), *("ttft", "tpot", "e2e", "trace"))
    report = serve_analyze(
        arguments.model,
        serving.strategy,
        serving.mesh,
        system,
        serving.workload,
        levels=serving.levels,
        **{name: value for name, value in vars(serving).items() if name not in positional},
    )
    put(json.dumps(with_warnings(report.to_dict()), indent=1) if arguments.json else report.text())
    put("\n")
    if trace is not None:
        outputs.add(trace, request_trace(report.served))
        for path in outputs.commit():
            say(f"wrote {path}")
    return 0


def run_search(
    serving: SearchedServing, step: StepOptions, devices: int, report: str | None, as_json: bool
) -> int:
    """Search ways of serving and print them."""
    outputs = serving.outputs()
    picture = outputs.promise(serving.picture, "--picture")
    page = outputs.promise(report, "--report")
    system = begin(step, "--serve", None)
    from tvm_distir.interface.report.serving_front import front_svg
    from tvm_distir.interface.report.serving_page import serving_page
    from tvm_distir.planning import Speculation, search_serving

    guess = Speculation(serving.draft, serving.draft_tokens, serving.acceptance)
    result = search_serving(
        str(step.model),
        devices,
        system,
        serving.workload,
        serving.levels,
        kv_dtypes=serving.kv_dtypes,
        weights=serving.weights,
        apart=serving.apart,
        speculation=guess if serving.draft_tokens else None,
        router=serving.router,
        stages=serving.stages,
    )
    put(json.dumps(with_warnings(result.to_dict()), indent=1) if as_json else result.text())
    put("\n")
    title = f"{step.model} on {devices} x {system.name}, {serving.workload}"
    outputs.add(picture, front_svg(result, title))
    outputs.add(page, serving_page(result, title))
    for path in outputs.commit():
        say(f"wrote {path}")
    return 0

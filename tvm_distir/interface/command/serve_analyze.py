# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir serve-analyze``: predict how a model is served."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError, option, parse_count, parse_mesh, parse_number

from .options import add_options, read_options, read_step
from .outputs import Outputs
from .resumable import begin
from .terminal import print_answer, print_result

if TYPE_CHECKING:
    from tvm_distir.planning import FleetResult, ServingReport, ServingSearchResult

    Answer = FleetResult | ServingReport | ServingSearchResult


def _seconds(text: str, option: str) -> float:
    """Read a time with its unit, such as ``500ms`` (UsageError DIST0152)."""
    for unit, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if text.endswith(unit):
            return parse_number(text.removesuffix(unit), option) * factor
    raise UsageError(
        "DIST0152", f'"{text}" has no unit', location=option, remedy="Write 500ms, or 0.5s."
    )


def _tokens(text: str, option: str) -> int:
    """Read a number of tokens, or 0."""
    return 0 if text == "0" else parse_count(text, option)


def _engine(text: str, _option: str) -> str:
    """Read the name of an engine (UsageError DIST0152)."""
    from tvm_distir.planning import engine_table

    return text if engine_table(text) else ""


@dataclass(frozen=True)
class ServingOptions:
    """Options of a workload, of service levels, and of an engine.

    Parameters
    ----------
    workload : str
        poisson:RATE, burst, closed:USERS or a CSV file, with in=, out=, prefix=, seed=.
    ttft : float, optional
        Set the level of the TTFT.
    tpot : float, optional
        Set the level of the TPOT.
    e2e : float, optional
        Set that of the time to the last token.
    percentile : int
        Set the percentile of the levels: 50, 90 (default) or 99.
    router : str
        Send requests to replicas by round_robin (default), or to the one with the fewest in flight
        (least_requests).
    draft : str
        Set the draft model.
    draft_tokens : int
        Propose K tokens by the draft model.
    acceptance : float
        Set the share of accepted tokens.
    flags : str, optional
        Print the commands that start what was chosen in vllm, sglang, trtllm or dynamo, too.
    """

    workload: str = option("serve", "W", usual="poisson:1", frequent=True)
    ttft: float | None = option("serve", "500ms", _seconds, frequent=True)
    tpot: float | None = option("serve", "30ms", _seconds, frequent=True)
    e2e: float | None = option("serve", "20s", _seconds, frequent=True)
    percentile: int = option("serve", "P", parse_count, usual="90", frequent=True)
    router: str = option("serve", "R", usual="round_robin")
    draft: str = option("serve", "MODEL", usual="")
    draft_tokens: int = option("serve", "K", _tokens, usual="0")
    acceptance: float = option("serve", "A", parse_number, usual="0.7")
    flags: str | None = option("serve", "ENGINE", _engine, frequent=True)

    @property
    def levels(self) -> Any:
        """Return the service levels."""
        from tvm_distir.planning import ServiceLevels

        return ServiceLevels(self.ttft, self.tpot, self.e2e, self.percentile)

    def show(self, answer: Answer, as_json: bool) -> None:
        """Print an answer, and the commands of an engine; what it cannot say is refused then."""
        from tvm_distir.planning import engine_commands

        if not as_json:
            print_result(answer.text() + "\n")
        commands = None
        if self.flags is not None and answer.setup is not None:
            commands = engine_commands(answer.setup, self.workload, self.flags)
        if as_json:
            stated = {"commands": commands and asdict(commands)} if self.flags else {}
            print_answer({**answer.to_dict(), **stated}, "", as_json)
        elif commands is not None:
            print_result(f"\n{commands.text()}\n")

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
        Set the type of weights: none, fp8, fp8-block, int4, ... (default: of the checkpoint).
    prefill_mesh : mapping of str to int, optional
        Fill caches on devices apart, with this mesh.
    prefill_replicas : int
        Set the number of prefill replicas.
    prefill_scheduler : str
        Set the scheduler of the devices apart (default: that of --scheduler).
    prefill_system : str
        Set the system of the devices apart (default: that of --system).
    trace : str, optional
        Write the requests and the steps of each replica as a trace that Perfetto opens.
    """

    strategy: str = option("serve", "NAME", usual="megatron", frequent=True)
    mesh: Mapping[str, int] = option("serve", "tp=4", parse_mesh, frequent=True)
    scheduler: str = option("serve", "KIND[:k=v,...]", usual="continuous")
    replicas: int = option("serve", "N", parse_count, usual="1", frequent=True)
    kv_dtype: str = option("serve", "T", usual="")
    weights: str = option("serve", "T", flag="--quantize", usual="", frequent=True)
    prefill_mesh: Mapping[str, int] | None = option("serve", "tp=2", parse_mesh)
    prefill_replicas: int = option("serve", "N", parse_count, usual="1")
    prefill_scheduler: str = option("serve", "KIND[:k=v,...]", usual="")
    prefill_system: str = option("serve", "SYSTEM", usual="")
    trace: str | None = option("serve", "FILE.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_served_model(parser)
    add_options(parser, AnalyzedServing, required=("mesh",))
    parser.add_argument("--json", action="store_true", help="Print the report as JSON.")
    parser.set_defaults(registers=True)


def add_served_model(parser: argparse.ArgumentParser, repeated: Collection[str] = ()) -> None:
    """Add MODEL, and the options of a system, of which some may be repeated."""
    parser.add_argument(
        "model", metavar="MODEL", help="A decoder: zoo:NAME?key=value,... or a config.json"
    )
    names = ("system", "kernels", "price")
    add_options(parser, StepOptions, names=names, required=("system",), repeated=repeated)


def run(arguments: argparse.Namespace) -> int:
    """Serve the workload and print the report."""
    serving = read_options(arguments, AnalyzedServing)
    step = read_step(arguments, StepOptions, ("strategy", "mesh"))
    outputs = serving.outputs()
    trace = outputs.reserve(serving.trace, "--trace")
    system = begin(step, "--strategy", serving.strategy)
    from tvm_distir.planning import request_trace, serve_analyze

    positional = ("strategy", "mesh", "workload", "ttft", "tpot", "e2e", "percentile", "trace",
                  "flags")  # fmt: skip
    report = serve_analyze(
        arguments.model,
        serving.strategy,
        serving.mesh,
        system,
        serving.workload,
        levels=serving.levels,
        **{name: value for name, value in vars(serving).items() if name not in positional},
    )
    serving.show(report, arguments.json)
    if trace is not None:
        outputs.add(trace, request_trace(report.served))
        outputs.write()
    return 0

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir serve-analyze``, and the options of ``tvm-distir search --serve``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError, parse_count, parse_mesh, parse_number

from .options import add_step_options, read_step
from .outputs import Outputs
from .resumable import begin
from .terminal import put, say, with_warnings


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
    parser.add_argument(
        "--strategy",
        metavar="NAME",
        default="megatron",
        help="Set the strategy (default: megatron).",
    )
    parser.add_argument("--mesh", metavar="tp=4", required=True, help="Set the mesh of a replica.")
    add_step_options(parser, names=("system", "kernels", "price"), required=("system",))
    add_levels(parser)
    parser.add_argument(
        "--scheduler",
        metavar="KIND[:k=v,...]",
        default="continuous",
        help="continuous (default), prefill_first or static, with tokens=N, requests=N and "
        "step_overhead_us=X.",
    )
    parser.add_argument("--replicas", metavar="N", default="1", help="Set the number of replicas.")
    _add_router(parser)
    parser.add_argument("--kv-dtype", metavar="T", default="", help="Set the dtype of caches.")
    parser.add_argument(
        "--quantize",
        metavar="T",
        default="none",
        help="Set the type of weights: none (default), fp8, nvfp4, int4, ... (a kernel profile).",
    )
    parser.add_argument(
        "--prefill-mesh", metavar="tp=2", help="Fill caches on devices apart, with this mesh."
    )
    parser.add_argument(
        "--prefill-replicas", metavar="N", default="1", help="Set the number of prefill replicas."
    )
    parser.add_argument(
        "--prefill-scheduler",
        metavar="KIND[:k=v,...]",
        default="",
        help="Set the scheduler of the devices apart (default: that of --scheduler).",
    )
    _add_speculation(parser)
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        help="Write the requests and the steps of each replica as a trace that Perfetto opens.",
    )
    parser.add_argument("--json", action="store_true", help="Print the report as JSON.")
    parser.set_defaults(registers=True, run=run)


def add_levels(parser: Any) -> None:
    """Add the options of a workload and of service levels."""
    parser.add_argument(
        "--workload",
        metavar="W",
        default="poisson:1",
        help="poisson:RATE, burst, closed:USERS or a CSV file, with in=, out=, prefix=, seed=.",
    )
    parser.add_argument("--ttft", metavar="500ms", help="Set the 90th percentile of the TTFT.")
    parser.add_argument("--tpot", metavar="30ms", help="Set the 90th percentile of the TPOT.")
    parser.add_argument("--e2e", metavar="20s", help="Set that of the time to the last token.")


def _add_router(parser: Any) -> None:
    """Add the option of the router of replicas."""
    parser.add_argument(
        "--router",
        metavar="R",
        default="round_robin",
        help="Send requests to replicas by round_robin (default), or to the one with the fewest "
        "in flight (least_requests).",
    )


def _add_speculation(parser: Any) -> None:
    """Add the options of a draft model."""
    parser.add_argument("--draft", metavar="MODEL", default="", help="Set the draft model.")
    parser.add_argument(
        "--draft-tokens", metavar="K", default="0", help="Propose K tokens by the draft model."
    )
    parser.add_argument(
        "--acceptance", metavar="A", default="0.7", help="Set the share of accepted tokens."
    )


def _speculation(arguments: argparse.Namespace) -> tuple[str, int, float]:
    """Return the draft model, the tokens that it proposes (0: none), and the share accepted."""
    tokens = 0
    if arguments.draft_tokens != "0":
        tokens = parse_count(arguments.draft_tokens, "--draft-tokens")
    return arguments.draft, tokens, parse_number(arguments.acceptance, "--acceptance")


def levels_of(arguments: argparse.Namespace) -> Any:
    """Return the service levels of the options."""
    from tvm_distir.planning import ServiceLevels

    return ServiceLevels(
        *(
            None if text is None else _seconds(text, f"--{name}")
            for name in ("ttft", "tpot", "e2e")
            for text in (getattr(arguments, name),)
        )
    )


def _seconds(text: str, option: str) -> float:
    """Read a time with its unit, such as ``500ms`` (UsageError DIST0152)."""
    for unit, factor in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if text.endswith(unit):
            return parse_number(text.removesuffix(unit), option) * factor
    raise UsageError(
        "DIST0152", f'"{text}" has no unit', place=option, remedy="Write 500ms, or 0.5s."
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve the workload and print the report."""
    step, mesh = read_step(arguments, StepOptions, ("mesh",)), parse_mesh(arguments.mesh)
    prefill = parse_mesh(arguments.prefill_mesh) if arguments.prefill_mesh else None
    counts = [
        parse_count(getattr(arguments, name), f"--{name.replace('_', '-')}")
        for name in ("replicas", "prefill_replicas")
    ]
    draft, draft_tokens, acceptance = _speculation(arguments)
    outputs = _outputs(arguments)
    trace = outputs.promise(arguments.trace, "--trace")
    system = begin(step, "--strategy", arguments.strategy)
    from tvm_distir.planning import request_trace, serve_analyze

    report = serve_analyze(
        arguments.model,
        arguments.strategy,
        mesh,
        system,
        arguments.workload,
        scheduler=arguments.scheduler,
        levels=levels_of(arguments),
        replicas=counts[0],
        kv_dtype=arguments.kv_dtype,
        weights=arguments.quantize,
        prefill_mesh=prefill,
        prefill_replicas=counts[1],
        draft=draft,
        draft_tokens=draft_tokens,
        acceptance=acceptance,
        router=arguments.router,
        prefill_scheduler=arguments.prefill_scheduler,
    )
    put(json.dumps(with_warnings(report.to_dict()), indent=1) if arguments.json else report.text())
    put("\n")
    if trace is not None:
        outputs.add(trace, request_trace(report.served))
        for path in outputs.commit():
            say(f"wrote {path}")
    return 0


def _outputs(arguments: argparse.Namespace) -> Outputs:
    """Return the files of a command, which may read a trace of requests."""
    read = arguments.workload if arguments.workload.endswith(".csv") else None
    return Outputs({"--workload": read})


SERVING = (
    *("workload", "ttft", "tpot", "e2e", "apart", "kv_dtypes", "router", "draft", "draft_tokens"),
    *("acceptance", "quantize", "stages", "picture"),
)
"""Options of ``search`` that need ``--serve``."""


def add_serving(parser: Any) -> None:
    """Add the options of ``search --serve``."""
    group = parser.add_argument_group("serving")
    group.add_argument(
        "--serve",
        action="store_true",
        help="Search the way of serving that keeps --ttft, --tpot and --e2e at the highest rate.",
    )
    add_levels(group)
    group.add_argument(
        "--apart", action="store_true", help="Try devices apart for prefill and decode."
    )
    group.add_argument(
        "--kv-dtypes",
        metavar="T,T",
        default="",
        help="Try dtypes of caches, such as bfloat16,float8_e4m3fn.",
    )
    _add_router(group)
    _add_speculation(group)
    group.add_argument(
        "--quantize",
        metavar="T,T",
        default="none",
        help="Try types of weights, such as none,fp8,int4.",
    )
    group.add_argument(
        "--stages",
        metavar="1,2",
        default="1",
        help="Try numbers of pipeline stages of a replica (default: 1).",
    )
    group.add_argument("--picture", metavar="FILE.svg", help="Draw the front of --serve.")


def run_search(
    arguments: argparse.Namespace, step: StepOptions, devices: int, as_json: bool
) -> int:
    """Search ways of serving and print them."""
    outputs = _outputs(arguments)
    picture = outputs.promise(arguments.picture, "--picture")
    page = outputs.promise(arguments.report, "--report")
    guess = _speculation(arguments)
    stages = [parse_count(word, "--stages") for word in arguments.stages.split(",")]
    system = begin(step, "--serve", None)
    from tvm_distir.interface.report.serving_front import front_svg
    from tvm_distir.interface.report.serving_page import serving_page
    from tvm_distir.planning import Speculation, search_serving

    result = search_serving(
        arguments.model,
        devices,
        system,
        arguments.workload,
        levels_of(arguments),
        kv_dtypes=[word.strip() for word in arguments.kv_dtypes.split(",")],
        weights=[word.strip() for word in arguments.quantize.split(",")],
        apart=arguments.apart,
        speculation=Speculation(*guess) if guess[1] else None,
        router=arguments.router,
        stages=stages,
    )
    put(json.dumps(with_warnings(result.to_dict()), indent=1) if as_json else result.text())
    put("\n")
    title = f"{arguments.model} on {devices} x {system.name}, {arguments.workload}"
    outputs.add(picture, front_svg(result, title))
    outputs.add(page, serving_page(result, title))
    for path in outputs.commit():
        say(f"wrote {path}")
    return 0

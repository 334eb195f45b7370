# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir serve-search``: search the way of serving a model on a cluster."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

from tvm_distir.planning import StepOptions
from tvm_distir.support import option, parse_count

from .options import add_options, read_options, read_step
from .resumable import begin
from .serve_analyze import ServingOptions, add_served_model
from .terminal import print_result, with_warnings


def _words(text: str, _option: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _counts(text: str, option: str) -> list[int]:
    return [parse_count(word, option) for word in text.split(",")]


@dataclass(frozen=True)
class SearchedServing(ServingOptions):
    """Options of ``serve-search`` beside those of the workload.

    Parameters
    ----------
    apart : bool
        Try devices apart for prefill and decode.
    kv_dtypes : list of str
        Try dtypes of caches, such as bfloat16,float8_e4m3fn.
    weights : list of str
        Try types of weights, such as none,fp8,int4 (default: of the checkpoint).
    stages : list of int
        Try numbers of pipeline stages of a replica (default: 1).
    picture : str, optional
        Draw the front of cost and rate as an SVG file.
    report : str, optional
        Write the front and the tables as an HTML page.
    """

    apart: bool = option("serve", default=False, frequent=True)
    kv_dtypes: list[str] = option("serve", "T,T", _words, flag="--kv-dtype", usual="")
    weights: list[str] = option("serve", "T,T", _words, flag="--quantize", usual="", frequent=True)
    stages: list[int] = option("serve", "1,2", _counts, usual="1")
    picture: str | None = option("serve", "FILE.svg")
    report: str | None = option("serve", "r.html", frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_served_model(parser)
    parser.add_argument("--devices", required=True, metavar="N", help="Set the number of devices.")
    add_options(parser, SearchedServing)
    parser.add_argument("--json", action="store_true", help="Print the report as JSON.")
    parser.set_defaults(registers=True)


def run(arguments: argparse.Namespace) -> int:
    """Search ways of serving and print them."""
    serving = read_options(arguments, SearchedServing)
    step = read_step(arguments, StepOptions)
    devices = parse_count(arguments.devices, "--devices")
    outputs = serving.outputs()
    picture = outputs.reserve(serving.picture, "--picture")
    page = outputs.reserve(serving.report, "--report")
    system = begin(step, "", None)
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
    print_result(
        json.dumps(with_warnings(result.to_dict()), indent=1) if arguments.json else result.text()
    )
    print_result("\n")
    title = f"{step.model} on {devices} x {system.name}, {serving.workload}"
    outputs.add(picture, front_svg(result, title))
    outputs.add(page, serving_page(result, title))
    outputs.write()
    return 0

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir serve-search``: search the way of serving a model on a cluster."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError, option, parse_count, parse_number

from .options import add_options, read_options, read_step
from .resumable import begin
from .serve_analyze import ServingOptions, add_served_model

if TYPE_CHECKING:
    from tvm_distir.hardware import System


def _words(text: str, _option: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _rate(text: str, option: str) -> float:
    rate = parse_number(text, option)
    if rate <= 0:
        remedy = "Give requests per second, such as 50."
        raise UsageError("DIST0152", f"{text} is no rate", location=option, remedy=remedy)
    return rate


def _counts(text: str, option: str) -> list[int]:
    return [parse_count(word, option) for word in text.split(",")]


@dataclass(frozen=True)
class SearchedServing(ServingOptions):
    """Options of ``serve-search`` beside those of the workload.

    Parameters
    ----------
    rate : float, optional
        Find the fewest devices that serve R requests per second within the levels; --system, with
        a --price each, may be repeated.
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

    rate: float | None = option("serve", "R", _rate, frequent=True)
    apart: bool = option("serve", default=False, frequent=True)
    kv_dtypes: list[str] = option("serve", "T,T", _words, flag="--kv-dtype", usual="")
    weights: list[str] = option("serve", "T,T", _words, flag="--quantize", usual="", frequent=True)
    stages: list[int] = option("serve", "1,2", _counts, usual="1")
    picture: str | None = option("serve", "FILE.svg")
    report: str | None = option("serve", "r.html", frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_served_model(parser, repeated=("system", "price"))
    parser.add_argument(
        "--devices", metavar="N",
        help="Set the number of devices; with --rate, that of the largest replica (default: 8).",
    )  # fmt: skip
    add_options(parser, SearchedServing)
    parser.add_argument("--json", action="store_true", help="Print the report as JSON.")
    parser.set_defaults(registers=True)


def run(arguments: argparse.Namespace) -> int:
    """Search ways of serving and print them."""
    serving = read_options(arguments, SearchedServing)
    _check(arguments, serving)
    outputs = serving.outputs()
    picture = outputs.reserve(serving.picture, "--picture")
    page = outputs.reserve(serving.report, "--report")
    systems = _systems(arguments)
    from tvm_distir.interface.report.serving_front import front_svg
    from tvm_distir.interface.report.serving_page import serving_page
    from tvm_distir.planning import Speculation, search_fleet, search_serving

    guess = Speculation(serving.draft, serving.draft_tokens, serving.acceptance)
    options: dict[str, Any] = {
        **{name: getattr(serving, name) for name in ("kv_dtypes", "weights", "router")},
        "speculation": guess if serving.draft_tokens else None, "stages": serving.stages,
    }  # fmt: skip
    model, devices = arguments.model, parse_count(arguments.devices or "8", "--devices")
    if serving.rate is not None:
        fleet = search_fleet(
            model, systems, serving.workload, serving.levels, rate_per_s=serving.rate,
            devices=devices, disaggregated=serving.apart, **options,
        )  # fmt: skip
        serving.show(fleet, arguments.json)
        return 0
    (system,) = systems
    result = search_serving(
        model, devices, system, serving.workload, serving.levels, apart=serving.apart, **options
    )
    title = f"{model} on {devices} x {system.name}, {serving.workload}"
    outputs.add(picture, front_svg(result, title))
    outputs.add(page, serving_page(result, title))
    outputs.write()
    serving.show(result, arguments.json)
    return 0


def _check(arguments: argparse.Namespace, serving: SearchedServing) -> None:
    """Refuse options that need --rate, or that do not go with it (UsageError DIST0151)."""
    fault = None
    if serving.rate is None and arguments.devices is None:
        fault = "--devices is missing", "Add --devices N, or --rate R for the fewest."
    elif serving.rate is None and len(arguments.system) > 1:
        fault = "several systems are compared at a rate", "Add --rate R."
    elif serving.rate is not None and (serving.picture or serving.report):
        fault = "a search at a rate has no front", "Leave out --picture and --report."
    elif len(_usd(arguments)) != len(arguments.system):
        fault = "each system has a price, or none has", "Repeat --price for each --system."
    if fault is not None:
        location = "tvm-distir serve-search"
        raise UsageError("DIST0151", fault[0], location=location, remedy=fault[1])


def _systems(arguments: argparse.Namespace) -> list[System]:
    """Return the systems with their prices."""
    systems = []
    for name, usd in zip(arguments.system, _usd(arguments), strict=True):
        single = argparse.Namespace(**{**vars(arguments), "system": name, "price": usd})
        systems.append(begin(read_step(single, StepOptions), "", None))
    return systems


def _usd(arguments: argparse.Namespace) -> list[str | None]:
    """Return the values of --price, or None for each system."""
    return vars(arguments)["price"] or [None] * len(arguments.system)

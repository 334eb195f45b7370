# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir search``: a model and a cluster in, the fastest plans out."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from tvm_distir.support import UsageError, shortened

from .option_values import parse_batch, parse_count, parse_dims, parse_mesh
from .options import add_model, add_system, add_training, check_training
from .outputs import add_force
from .resumable import begin, check_resume, outputs_of, settings_of
from .search_text import search_text
from .stages import training_keywords
from .terminal import put, say

_SIZES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)")


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "search",
        help="find the fastest plans of a model on a cluster",
        description="Find the fastest plans of a model on a cluster, with a bound that is proved.",
        allow_abbrev=False,
    )
    add_model(parser)
    parser.add_argument("--devices", required=True, metavar="N", help="devices of the cluster")
    add_system(parser, required=True)
    add_training(parser)
    parser.add_argument(
        "--memory", metavar="80GiB", help="what a device may keep; that of the system by default"
    )
    parser.add_argument(
        "--axes",
        metavar="dp,tp,pp",
        default="dp,tp",
        help="names of the mesh axes, major first (dp,tp); pp is that of pipeline stages",
    )
    parser.add_argument("--max", metavar="tp=8", help="largest sizes of axes")
    parser.add_argument("--fix", metavar="tp=8,pp=1", help="sizes of axes")
    parser.add_argument(
        "--inside-node", metavar="tp", default="", help="axes whose groups do not leave a node"
    )
    parser.add_argument("--keep", metavar="P.json", help="a plan whose rules hold")
    parser.add_argument(
        "--compare",
        metavar="STRATEGY|P.json",
        help="what to compare with: a strategy, on its best mesh, or a plan",
    )
    parser.add_argument(
        "--micro-batch",
        metavar="1,2,4",
        default="1,2,4",
        help="samples of a micro-batch on each part of dp, where there are stages (1,2,4)",
    )
    parser.add_argument(
        "--chunks", metavar="1,2", default="1", help="stages per rank, where there are stages (1)"
    )
    parser.add_argument(
        "--stage-devices",
        metavar="any",
        default="equal",
        help="equal, or any: also stages on meshes of different sizes and shapes (equal)",
    )
    parser.add_argument(
        "--recompute",
        metavar="none,full",
        default="none,selective,full",
        help="what the backward part makes again, tried in turn until a plan fits "
        "(none,selective,full)",
    )
    parser.add_argument(
        "--gap", metavar="1%", default="1%", help="how far labels may be above the least (1%%)"
    )
    parser.add_argument(
        "--margin",
        metavar="5%",
        default="5%",
        help="how far estimates by layers are trusted, where there are stages (5%%)",
    )
    parser.add_argument(
        "--time-limit", metavar="S", help="seconds after which no further mesh is begun"
    )
    parser.add_argument("--top", metavar="K", default="5", help="how many plans to give (5)")
    parser.add_argument(
        "--why",
        action="store_true",
        help="say what other placements of the best plan's weights would cost",
    )
    parser.add_argument(
        "--report", metavar="r.html", help="write the Pareto front and the tables as one HTML page"
    )
    add_force(parser)
    parser.add_argument("--resume", action="store_true", help="go on with the search in -o DIR")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "-o", dest="folder", metavar="DIR", help="write the table and the plans into DIR"
    )
    parser.set_defaults(run=run)


def parse_size(text: str, option: str) -> int:
    """Read a number of bytes, as ``80GiB``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not float(found.group(1)):
        raise UsageError(
            "DIST0152",
            f'"{shortened(text)}" is no number of bytes',
            place=option,
            remedy=f"Write a number and a unit: {option} 80GiB.",
        )
    return int(float(found.group(1)) * _SIZES[found.group(2)])


def parse_share(text: str, option: str) -> float:
    """Read a share from 0 up to 1, as ``1%`` or ``0.01``."""
    number, percent, rest = text.strip().partition("%")
    try:
        found = float(number) / (100 if percent else 1)
    except ValueError:
        found = -1.0
    if rest or not 0 <= found < 1:
        raise UsageError(
            "DIST0152",
            f'"{shortened(text)}" is no share below 1',
            place=option,
            remedy=f"Write one: {option} 1%, or {option} 0.01.",
        )
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def constraints_of(arguments: argparse.Namespace) -> Any:
    """Return the constraints that the options set to the search."""
    from tvm_distir.core import Plan
    from tvm_distir.planning import Constraints

    return Constraints(
        axes=_names(arguments.axes),
        most=parse_mesh(arguments.max) if arguments.max else {},
        fixed=parse_mesh(arguments.fix) if arguments.fix else {},
        inside_node=_names(arguments.inside_node),
        keep=Plan.load(arguments.keep) if arguments.keep else None,
        micro_batches=tuple(
            parse_count(word, "--micro-batch") for word in _names(arguments.micro_batch)
        ),
        chunks=tuple(parse_count(word, "--chunks") for word in _names(arguments.chunks)),
        recompute=_names(arguments.recompute),
        stage_devices=arguments.stage_devices,
    )


_SETTINGS = (
    *("model", "devices", "batch", "dim", "train", "loss", "optimizer", "clip", "loss_scale"),
    *("master", "freeze", "memory", "axes", "max", "fix", "inside_node", "micro_batch"),
    *("chunks", "stage_devices", "recompute", "gap", "margin"),
)
"""Options that prices depend on, for a search that goes on later."""


def run(arguments: argparse.Namespace) -> int:
    """Search, print the table, write the plans."""
    arguments.batch = parse_batch(arguments.batch)
    arguments.dims = parse_dims(arguments.dim)
    check_training(arguments, ("recompute",))
    devices, top = parse_count(arguments.devices, "--devices"), parse_count(arguments.top, "--top")
    gap, margin = parse_share(arguments.gap, "--gap"), parse_share(arguments.margin, "--margin")
    memory = parse_size(arguments.memory, "--memory") if arguments.memory else None
    limit_s = parse_count(arguments.time_limit, "--time-limit") if arguments.time_limit else None
    constraints = constraints_of(arguments)
    check_resume(arguments, arguments.folder, "DIR")
    is_plan = (arguments.compare or "").endswith(".json")
    reads = {"--keep": arguments.keep, "--compare": arguments.compare if is_plan else None}
    outputs = outputs_of(arguments, reads)
    report = outputs.promise(arguments.report, "--report")
    path = outputs.promise_folder(arguments.folder, "-o", claims=("search.json", "rows.jsonl"))
    system = begin(arguments, "--compare", None if is_plan else arguments.compare)
    from tvm_distir.planning import search as searching

    folder = None
    if path is not None:
        settings = settings_of(arguments, system, _SETTINGS, {"keep": arguments.keep})
        folder = searching.Folder(path, settings, resume=arguments.resume, force=arguments.force)
    model, batch = _model(arguments)
    result = searching.search(
        model,
        devices,
        system,
        batch=batch,
        train=training_keywords(arguments) if arguments.train else None,
        memory_bytes=memory,
        gap=gap,
        margin=margin,
        constraints=constraints,
        top=top,
        time_limit_s=limit_s,
        why=arguments.why,
        compare=_comparison(arguments.compare, is_plan),
        folder=folder,
        on_progress=_progress,
    )
    if folder is not None:
        for file in folder.finish(result):
            say(f"wrote {file}")
    put(json.dumps(result.to_dict(), indent=1) if arguments.json else search_text(result))
    if report is not None:
        from tvm_distir.interface.report.search_page import search_page

        title = f"{shortened(arguments.model)} on {devices} devices of {system.name}"
        capacity = system.memory_capacity_bytes if memory is None else memory
        outputs.add(report, search_page(result, title, capacity))
        for file in outputs.commit():
            say(f"wrote {file}")
    if result.interrupted:
        raise KeyboardInterrupt
    return 0 if result.complete or result.plans else 3


def _model(arguments: argparse.Namespace) -> tuple[Any, int | None]:
    """Return a builder of modules by batch and the batch, or a module with a fixed batch."""
    from tvm_distir.core import data_positions
    from tvm_distir.models import load_model

    model = load_model(arguments.model, batch=arguments.batch, dims=arguments.dims)
    if model.is_text:
        return model.mod, None
    main = model.mod["main"]
    batch = arguments.batch or int(main.params[data_positions(main)[0]].ty.shape[0])

    def make(size: int) -> Any:
        if size == batch:
            return model.mod
        return load_model(arguments.model, batch=size, dims=arguments.dims).mod

    return make, batch


def _comparison(text: str | None, is_plan: bool) -> Any:
    """Return the plan to compare with, or a builder of a strategy's plan."""
    from tvm_distir.core import Plan
    from tvm_distir.planning import make_plan

    if text is None:
        return None
    if is_plan:
        return text, Plan.load(text)
    return text, lambda mod, mesh, system: make_plan(mod, text, mesh, system)


def _progress(space: Any, best: Any) -> None:
    """Say how far the search has come."""
    from tvm_distir.interface.report import units

    done = ", ".join(f"{count} {state}" for state, count in sorted(space.items()))
    found = f"; best {units.duration(best.time_s)} ({best.row.candidate.key})" if best else ""
    say(f"{done}{found}")

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir search``: search for the fastest plans of a model on a cluster."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError, parse_count, parse_mesh, shortened

from . import serve_analyze
from .options import (
    TRAINING,
    add_jobs,
    add_model,
    add_step_options,
    asked_by,
    parse_jobs,
    read_step,
    without_training,
)
from .outputs import add_force
from .resumable import begin, check_resume, outputs_of, settings_of
from .stages import training_keywords
from .terminal import put, say, with_warnings

_SIZES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)")


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "search",
        help="Search for the fastest plans of a model on a cluster.",
        description="Search for the fastest plans of a model on a cluster, with a lower bound.",
        allow_abbrev=False,
    )
    add_model(parser)
    parser.add_argument("--devices", required=True, metavar="N", help="Set the number of devices.")
    add_step_options(
        parser,
        ("load", "train"),
        names=("system", "kernels", "price"),
        without=("recompute",),
        required=("system",),
    )
    parser.add_argument(
        "--memory",
        metavar="80GiB",
        help="Set the memory limit per device (default: of the system).",
    )
    parser.add_argument(
        "--axes",
        metavar="dp,tp,pp",
        default="dp,tp",
        help="Set the mesh axes, major first; pp is the axis of pipeline stages (default: dp,tp).",
    )
    parser.add_argument("--max", metavar="tp=8", help="Set upper bounds of axis sizes.")
    parser.add_argument("--fix", metavar="tp=8,pp=1", help="Fix axis sizes.")
    parser.add_argument(
        "--inside-node",
        metavar="tp",
        default="",
        help="Keep the groups of these axes within a node.",
    )
    parser.add_argument("--keep", metavar="P.json", help="Keep the rules of a plan.")
    parser.add_argument(
        "--compare",
        metavar="STRATEGY|P.json",
        help="Set the baseline: a strategy on its best mesh, or a plan.",
    )
    parser.add_argument(
        "--micro-batch",
        metavar="1,2,4",
        default="1,2,4",
        help="Set the micro-batch sizes in samples per rank of dp, with pp (default: 1,2,4).",
    )
    parser.add_argument(
        "--chunks",
        metavar="1,2",
        default="1",
        help="Set the stages per pipeline rank, with pp (default: 1).",
    )
    parser.add_argument(
        "--stage-devices",
        metavar="any",
        default="equal",
        help="Set the meshes of stages: equal (default), or any for different sizes and shapes.",
    )
    parser.add_argument(
        "--recompute",
        metavar="none,full",
        default="none,selective,full",
        help="Set the recomputation policies, tried in order until a plan fits (default: "
        "none,selective,full).",
    )
    parser.add_argument(
        "--gap",
        metavar="1%",
        default="1%",
        help="Set the optimality gap of the placements of a candidate (default: 1%%).",
    )
    parser.add_argument(
        "--margin",
        metavar="5%",
        default="5%",
        help="Set the error margin of estimates by layer, with pp (default: 5%%).",
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        help="Set the time in seconds after which no further mesh is searched if there is a plan.",
    )
    parser.add_argument(
        "--top", metavar="K", default="5", help="Set the number of plans to return (default: 5)."
    )
    parser.add_argument(
        "--why",
        action="store_true",
        help="Print the cost of alternative placements of the weights of the best plan.",
    )
    parser.add_argument(
        "--report", metavar="r.html", help="Write the Pareto front and the tables as an HTML page."
    )
    add_jobs(parser)
    add_force(parser)
    serve_analyze.add_serving(parser)
    parser.add_argument("--resume", action="store_true", help="Resume the search in -o DIR.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    parser.add_argument(
        "-o", dest="folder", metavar="DIR", help="Write the table and the plans to DIR."
    )
    parser.set_defaults(run=partial(run, default_of=parser.get_default))


def parse_size(text: str, option: str) -> int:
    """Parse a number of bytes, as ``80GiB``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match.group(1)):
        raise UsageError(
            "DIST0152",
            f'"{shortened(text)}" is not a size',
            place=option,
            remedy=f"Give a number and a unit: {option} 80GiB.",
        )
    return int(float(match.group(1)) * _SIZES[match.group(2)])


def parse_share(text: str, option: str) -> float:
    """Read a share from 0 up to 1, as ``1%`` or ``0.01``."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if rest or not 0 <= share < 1:
        raise UsageError(
            "DIST0152",
            f'"{shortened(text)}" is not a share below 1',
            place=option,
            remedy=f"Give a share: {option} 1% or {option} 0.01.",
        )
    return share


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
        counts=tuple(
            parse_count(word, "--micro-batches") for word in _names(arguments.micro_batches or "")
        ),
        chunks=tuple(parse_count(word, "--chunks") for word in _names(arguments.chunks)),
        recompute=_names(arguments.recompute),
        stage_devices=arguments.stage_devices,
    )


_SETTINGS = (
    *(
        "devices",
        "batch",
        "dim",
        "entry",
        "train",
        "loss",
        "optimizer",
        "clip",
        "loss_scale",
    ),
    *("master", "freeze", "memory", "axes", "max", "fix", "inside_node", "micro_batch"),
    "micro_batches",
    *("chunks", "stage_devices", "recompute", "gap", "margin"),
)
"""Options that determine the costs, which a resumed search must repeat."""


_PLAN_OPTIONS = (
    *("batch", "dim", "seq", "entry", "memory", "axes", "max", "fix", "inside_node", "keep"),
    *("compare", "micro_batch", "chunks", "stage_devices", "gap", "margin", "time_limit", "top"),
    *("why", "jobs", "resume", "folder", "train", *(o.key for o in TRAINING.values())),
)
"""Options that ``--serve`` does not have."""

_STEP_OPTIONS = ("batch", "dim", "seq")
"""Those that set the sizes of one step, which an engine decides."""


def _check_kind(arguments: argparse.Namespace, default_of: Callable[[str], Any]) -> None:
    """Refuse (UsageError DIST0151) options that the kind of search does not have."""
    for name in _PLAN_OPTIONS if arguments.serve else serve_analyze.SERVING:
        if getattr(arguments, name) == default_of(name):
            continue
        option = "-o" if name == "folder" else f"--{name.replace('_', '-')}"
        remedy = f"Leave out {option}, or search plans of a step without --serve."
        if name in _STEP_OPTIONS:
            remedy = (
                f"Leave out {option}; set the tokens of requests by in= and out= of --workload."
            )
        raise UsageError(
            "DIST0151",
            f"search --serve has no {option}" if arguments.serve else f"{option} needs --serve",
            place="tvm-distir search",
            remedy=remedy if arguments.serve else "Add --serve.",
        )


def run(arguments: argparse.Namespace, default_of: Callable[[str], Any]) -> int:
    """Search, print the table, write the plans."""
    _check_kind(arguments, default_of)
    step = read_step(arguments, StepOptions, ("micro_batches", "recompute"))
    if arguments.serve:
        devices = parse_count(arguments.devices, "--devices")
        return serve_analyze.run_search(arguments, step, devices, arguments.json)
    if arguments.micro_batches is not None and not arguments.train:
        raise without_training(TRAINING["micro_batches"], arguments.command)
    devices, top = parse_count(arguments.devices, "--devices"), parse_count(arguments.top, "--top")
    gap, margin = parse_share(arguments.gap, "--gap"), parse_share(arguments.margin, "--margin")
    memory = parse_size(arguments.memory, "--memory") if arguments.memory else None
    limit_s = parse_count(arguments.time_limit, "--time-limit") if arguments.time_limit else None
    constraints = constraints_of(arguments)
    check_resume(arguments.resume, arguments.folder, "DIR")
    is_plan = (arguments.compare or "").endswith(".json")
    reads = {"--keep": arguments.keep, "--compare": arguments.compare if is_plan else None}
    outputs = outputs_of(step, reads, arguments.force)
    report = outputs.promise(arguments.report, "--report")
    path = outputs.promise_folder(arguments.folder, "-o", claims=("search.json", "rows.jsonl"))
    system = begin(step, "--compare", None if is_plan else arguments.compare)
    from tvm_distir.planning import search as searching

    folder = None
    if path is not None:
        options = {name: getattr(arguments, name) for name in _SETTINGS}
        options |= {"model": step.model, "batch": step.batch}
        settings = settings_of(options, system, {"keep": arguments.keep})
        folder = searching.Folder(path, settings, resume=arguments.resume, force=arguments.force)
    model, batch = _model(step)
    result = searching.search(
        model,
        devices,
        system,
        batch=batch,
        train=training_keywords(step, system),
        memory_bytes=memory,
        gap=gap,
        margin=margin,
        constraints=constraints,
        top=top,
        time_limit_s=limit_s,
        why=arguments.why,
        compare=_comparison(arguments.compare, is_plan, constraints.counts),
        folder=folder,
        on_progress=_progress,
        jobs=parse_jobs(arguments.jobs),
    )
    if folder is not None:
        for file in folder.finish(result):
            say(f"wrote {file}")
    data = with_warnings(result.to_dict())
    put(json.dumps(data, indent=1) if arguments.json else result.to_text())
    if report is not None:
        from tvm_distir.interface.report.search_page import search_page

        title = f"{shortened(str(step.model))} on {devices} devices of {system.name}"
        capacity = system.memory_capacity_bytes if memory is None else memory
        outputs.add(report, search_page(result, title, capacity))
        for file in outputs.commit():
            say(f"wrote {file}")
    if result.interrupted:
        raise KeyboardInterrupt
    return 0 if result.complete or result.plans else 3


def _model(step: StepOptions) -> tuple[Any, int | None]:
    """Return a builder of modules by batch and the batch, or a module with a fixed batch."""
    from tvm_distir.core import data_positions, entry_of
    from tvm_distir.planning import Study

    study = Study(step.model, **step.passed_to("load"))
    with asked_by("--entry", "DIST0341"):
        module = study.forward
    if study.source.is_text:
        return module, None
    main = module[entry_of(module)]
    batch = step.batch or int(main.params[data_positions(main)[0]].ty.shape[0])

    return _Maker(step, (batch, module)), batch


@dataclass
class _Maker:
    """Maker of the model at any batch, which workers can receive."""

    step: StepOptions
    known: tuple[int, Any] | None

    def __call__(self, size: int) -> Any:
        """Return the model of so many samples."""
        from tvm_distir.planning import Study

        if self.known is not None and size == self.known[0]:
            return self.known[1]
        return Study(self.step.model, **{**self.step.passed_to("load"), "batch": size}).forward

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the module, which a worker makes again."""
        return {**self.__dict__, "known": None}


def _comparison(text: str | None, is_plan: bool, counts: tuple[int, ...]) -> Any:
    """Return the plan to compare with, or a builder of a strategy's plan."""
    from tvm_distir.core import Plan
    from tvm_distir.planning import StrategyMaker

    if text is None:
        return None
    if is_plan:
        return text, Plan.load(text)
    return text, StrategyMaker(text, counts[0] if counts else None)


def _progress(space: Any, best: Any) -> None:
    """Report the progress of the search."""
    from tvm_distir.support.display import units

    done = ", ".join(f"{count} {state}" for state, count in sorted(space.items()))
    if best is None:
        say(done)
        return
    name = ", ".join(filter(None, (best.row.why, best.row.candidate.key)))
    fastest = f"best {units.duration(best.time_s)} ({name})"
    say(f"{done}; {fastest}" if done else fastest)

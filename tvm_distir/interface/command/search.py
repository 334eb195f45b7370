# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir search``: search for the fastest plans of a model on a cluster."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm_distir.planning import StepOptions, TrainingOptions
from tvm_distir.support import (
    UsageError,
    option,
    option_fields,
    parse_count,
    parse_mesh,
    shortened,
)

from .options import (
    TRAINING,
    JobOptions,
    add_model,
    add_options,
    asked_by,
    read_options,
    read_step,
    without_training,
)
from .outputs import add_force
from .resumable import begin, check_resume, outputs_of, settings_of
from .serve_analyze import SearchedServing, run_search
from .stages import training_keywords
from .terminal import put, say, with_warnings

COST, RUN = "cost", "run"
"""Stages of options that determine the costs, and of those that do not."""
_SIZES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)")


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


def _names(text: str, _option: str = "") -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _counts(text: str, option: str) -> tuple[int, ...]:
    return tuple(parse_count(word, option) for word in _names(text))


@dataclass(frozen=True)
class SearchOptions(JobOptions):
    """Options of ``search`` beside those of the step.

    Parameters
    ----------
    memory : int, optional
        Set the memory limit per device (default: of the system).
    axes : tuple of str
        Set the mesh axes, major first; pp is the axis of pipeline stages (default: dp,tp).
    max : mapping of str to int
        Set upper bounds of axis sizes.
    fix : mapping of str to int
        Fix axis sizes.
    inside_node : tuple of str
        Keep the groups of these axes within a node.
    keep : str, optional
        Keep the rules of a plan.
    compare : str, optional
        Set the baseline: a strategy on its best mesh, or a plan.
    micro_batch : tuple of int
        Set the micro-batch sizes in samples per rank of dp, with pp (default: 1,2,4).
    chunks : tuple of int
        Set the stages per pipeline rank, with pp (default: 1).
    stage_devices : str
        Set the meshes of stages: equal (default), or any for different sizes and shapes.
    recompute : tuple of str
        Set the recomputation policies, tried in order until a plan fits (default:
        none,selective,full).
    gap : float
        Set the optimality gap of the placements of a candidate (default: 1%).
    margin : float
        Set the error margin of estimates by layer, with pp (default: 5%).
    time_limit : int, optional
        Set the time in seconds after which no further mesh is searched if there is a plan.
    top : int
        Set the number of plans to return (default: 5).
    why : bool
        Print the cost of alternative placements of the weights of the best plan.
    resume : bool
        Resume the search in -o DIR.
    folder : str, optional
        Write the table and the plans to DIR.
    micro_batches : tuple of int
        The numbers of ``--micro-batches``, an option of the step.
    """

    memory: int | None = option(COST, "80GiB", parse_size)
    axes: tuple[str, ...] = option(COST, "dp,tp,pp", _names, usual="dp,tp")
    max: Mapping[str, int] | None = option(COST, "tp=8", parse_mesh)
    fix: Mapping[str, int] | None = option(COST, "tp=8,pp=1", parse_mesh)
    inside_node: tuple[str, ...] = option(COST, "tp", _names, usual="")
    keep: str | None = option(RUN, "P.json")
    compare: str | None = option(RUN, "STRATEGY|P.json")
    micro_batch: tuple[int, ...] = option(COST, "1,2,4", _counts, usual="1,2,4")
    chunks: tuple[int, ...] = option(COST, "1,2", _counts, usual="1")
    stage_devices: str = option(COST, "any", usual="equal")
    recompute: tuple[str, ...] = option(COST, "none,full", _names, usual="none,selective,full")
    gap: float = option(COST, "1%", parse_share, usual="1%")
    margin: float = option(COST, "5%", parse_share, usual="5%")
    time_limit: int | None = option(RUN, "S", parse_count)
    top: int = option(RUN, "K", parse_count, usual="5")
    why: bool = option(RUN, default=False)
    resume: bool = option(RUN, default=False)
    folder: str | None = option(RUN, "DIR", flag="-o")
    micro_batches: tuple[int, ...] = option("train", "M", _counts, default=())

    def constraints(self) -> Any:
        """Return the constraints that the options set to the search."""
        from tvm_distir.core.plan import Plan
        from tvm_distir.planning import Constraints

        return Constraints(
            axes=self.axes,
            most=self.max or {},
            fixed=self.fix or {},
            inside_node=self.inside_node,
            keep=Plan.load(self.keep) if self.keep else None,
            micro_batches=self.micro_batch,
            counts=self.micro_batches,
            chunks=self.chunks,
            recompute=self.recompute,
            stage_devices=self.stage_devices,
        )


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
    add_options(
        parser,
        StepOptions,
        ("load", "train"),
        names=("system", "kernels", "price"),
        without=("recompute",),
        required=("system",),
    )
    add_options(parser, SearchOptions, (COST, RUN))
    group = parser.add_argument_group("serving")
    group.add_argument(
        "--serve",
        action="store_true",
        help="Search the way of serving that keeps --ttft, --tpot and --e2e at the highest rate.",
    )
    add_options(group, SearchedServing)
    parser.add_argument(
        "--report", metavar="r.html", help="Write the Pareto front and the tables as an HTML page."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    add_force(parser)
    parser.set_defaults(run=partial(run, default_of=parser.get_default))


_STEP = [item for item in option_fields(StepOptions).values() if item.stage == "load"]
_TRAINING = [option_fields(StepOptions)["train"], *option_fields(TrainingOptions).values()]
_SEARCH = option_fields(SearchOptions).values()
_SETTINGS = (
    "devices",
    *(declared.key for declared in _STEP if "load" in declared.to),
    *(declared.key for declared in _TRAINING),
    *(declared.key for declared in _SEARCH if declared.stage != RUN),
)
"""Options that determine the costs, which a resumed search must repeat."""
_STEP_OPTIONS = ("batch", "dim", "seq")
"""Options that set the sizes of one step, which an engine decides."""


def _check_kind(arguments: argparse.Namespace, default_of: Callable[[str], Any]) -> None:
    """Refuse (UsageError DIST0151) options that the kind of search does not have."""
    others = (*_STEP, *_TRAINING, *_SEARCH)
    for declared in others if arguments.serve else option_fields(SearchedServing).values():
        if getattr(arguments, declared.key) == default_of(declared.key):
            continue
        flag = declared.flag
        remedy = f"Leave out {flag}, or search plans of a step without --serve."
        if declared.key in _STEP_OPTIONS:
            remedy = f"Leave out {flag}; set the tokens of requests by in= and out= of --workload."
        raise UsageError(
            "DIST0151",
            f"search --serve has no {flag}" if arguments.serve else f"{flag} needs --serve",
            place="tvm-distir search",
            remedy=remedy if arguments.serve else "Add --serve.",
        )


def run(arguments: argparse.Namespace, default_of: Callable[[str], Any]) -> int:
    """Search, print the table, write the plans."""
    _check_kind(arguments, default_of)
    step = read_step(arguments, StepOptions, ("micro_batches", "recompute"))
    devices = parse_count(arguments.devices, "--devices")
    if arguments.serve:
        serving = read_options(arguments, SearchedServing)
        return run_search(serving, step, devices, arguments.report, arguments.json)
    if arguments.micro_batches is not None and not arguments.train:
        raise without_training(TRAINING["micro_batches"], arguments.command)
    options = read_options(arguments, SearchOptions)
    constraints = options.constraints()
    check_resume(options.resume, options.folder, "DIR")
    is_plan = (options.compare or "").endswith(".json")
    reads = {"--keep": options.keep, "--compare": options.compare if is_plan else None}
    outputs = outputs_of(step, reads, arguments.force)
    report = outputs.promise(arguments.report, "--report")
    path = outputs.promise_folder(options.folder, "-o", claims=("search.json", "rows.jsonl"))
    system = begin(step, "--compare", None if is_plan else options.compare)
    from tvm_distir.planning import search as searching

    folder = None
    if path is not None:
        values = {name: getattr(arguments, name) for name in _SETTINGS}
        values |= {"model": step.model, "batch": step.batch}
        settings = settings_of(values, system, {"keep": options.keep})
        folder = searching.Folder(path, settings, resume=options.resume, force=arguments.force)
    model, batch = _model(step)
    result = searching.search(
        model,
        devices,
        system,
        batch=batch,
        train=training_keywords(step, system),
        memory_bytes=options.memory,
        gap=options.gap,
        margin=options.margin,
        constraints=constraints,
        top=options.top,
        time_limit_s=options.time_limit,
        why=options.why,
        compare=_comparison(options.compare, is_plan, constraints.counts),
        folder=folder,
        on_progress=_progress,
        jobs=options.jobs,
    )
    if folder is not None:
        for file in folder.finish(result):
            say(f"wrote {file}")
    data = with_warnings(result.to_dict())
    put(json.dumps(data, indent=1) if arguments.json else result.to_text())
    if report is not None:
        from tvm_distir.interface.report.search_page import search_page

        title = f"{shortened(str(step.model))} on {devices} devices of {system.name}"
        capacity = system.memory_capacity_bytes if options.memory is None else options.memory
        outputs.add(report, search_page(result, title, capacity))
        for file in outputs.commit():
            say(f"wrote {file}")
    if result.interrupted:
        raise KeyboardInterrupt
    return 0 if result.complete or result.plans else 3


def _model(step: StepOptions) -> tuple[Any, int | None]:
    """Return a builder of modules by batch and the batch, or a module with a fixed batch."""
    from tvm_distir.core.plan import data_positions
    from tvm_distir.core.rewriting import entry_of
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
    from tvm_distir.core.plan import Plan
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

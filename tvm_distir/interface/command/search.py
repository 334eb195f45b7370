# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir search``: search for the fastest plans of a model on a cluster."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.planning import StepOptions, TrainingOptions
from tvm_distir.support import option_fields, parse_count, shortened

from .options import (
    TRAINING,
    add_model,
    add_options,
    asked_by,
    read_options,
    read_step,
    without_training,
)
from .outputs import add_force
from .resumable import begin, check_resume, outputs_of, settings_of
from .search_options import COST, RUN, SearchOptions
from .stages import training_keywords
from .terminal import print_message, print_result, with_warnings

if TYPE_CHECKING:
    from pathlib import Path

    from tvm import ir

    from tvm_distir.hardware import System
    from tvm_distir.planning import search as searching


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model(parser)
    parser.add_argument("--devices", required=True, metavar="N", help="Set the number of devices.")
    add_options(
        parser,
        StepOptions,
        ("load", "train"),
        names=("system", "stack", "kernels", "quantize", "price"),
        without=("recompute",),
        required=("system",),
    )
    add_options(parser, SearchOptions, (COST, RUN))
    parser.add_argument(
        "--report", metavar="r.html", help="Write the Pareto front and the tables as an HTML page."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    add_force(parser)


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


def run(arguments: argparse.Namespace) -> int:
    """Search, print the table, write the plans."""
    step = read_step(arguments, StepOptions, ("micro_batches", "recompute"))
    devices = parse_count(arguments.devices, "--devices")
    if arguments.micro_batches is not None and not arguments.train:
        raise without_training(TRAINING["micro_batches"], arguments.command)
    return _search_plans(arguments, step, devices)


def _search_plans(arguments: argparse.Namespace, step: StepOptions, devices: int) -> int:
    """Search plans of a step, and return the exit code."""
    options = read_options(arguments, SearchOptions)
    constraints = options.constraints()
    check_resume(options.resume, options.folder, "DIR")
    is_plan = (options.compare or "").endswith(".json")
    reads = {"--keep": options.keep, "--compare": options.compare if is_plan else None}
    outputs = outputs_of(step, reads, arguments.force)
    report = outputs.reserve(arguments.report, "--report")
    path = outputs.reserve_folder(options.folder, "-o", claims=("search.json", "rows.jsonl"))
    system = begin(step, "--compare", None if is_plan else options.compare)
    from tvm_distir.planning import search as searching
    from tvm_distir.planning import with_weights

    system = with_weights(system, step.quantize, None if step.train else step.model)

    folder = None if path is None else _folder(path, arguments, step, options, system)
    model, batch = _model(step)
    result = searching.search(
        model,
        devices,
        system,
        batch=batch,
        train=training_keywords(step, system),
        memory_bytes=options.memory,
        constraints=constraints,
        time_limit_s=options.time_limit,
        compare=_comparison(options.compare, is_plan, constraints.counts),
        folder=folder,
        on_progress=_progress,
        **{name: getattr(options, name) for name in ("gap", "margin", "top", "why", "workers")},
    )
    if step.train and step.pinned_stack is not None and step.pinned_stack.trainer is not None:
        limits = options.memory, options.time_limit
        trainer = searching.TrainerSearch(step, constraints, devices, *limits)
        result = trainer.beside(trainer.run(options.top), result)
    if folder is not None:
        for file in folder.finish(result):
            print_message(f"wrote {file}")
    data = with_warnings(result.to_dict())
    print_result(json.dumps(data, indent=1) if arguments.json else result.to_text())
    if report is not None:
        from tvm_distir.interface.report.search_page import search_page

        title = f"{shortened(str(step.model))} on {devices} devices of {system.name}"
        capacity = system.memory_capacity_bytes if options.memory is None else options.memory
        outputs.add(report, search_page(result, title, capacity))
        outputs.write()
    if result.interrupted:
        raise KeyboardInterrupt
    return 0 if result.complete or result.plans else 3


def _folder(
    path: Path, arguments: argparse.Namespace, step: StepOptions, options: SearchOptions,
    system: System,
) -> searching.Folder:  # fmt: skip
    """Return the folder that keeps the candidates, for a search that is resumed."""
    from tvm_distir.planning import search as searching

    values = {name: getattr(arguments, name) for name in _SETTINGS}
    values |= {"model": step.model, "batch": step.batch}
    settings = settings_of(values, system, {"keep": options.keep})
    return searching.Folder(path, settings, resume=options.resume, force=arguments.force)


def _model(step: StepOptions) -> tuple[ir.IRModule | _Maker, int | None]:
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
    known: tuple[int, ir.IRModule] | None

    def __call__(self, size: int) -> ir.IRModule:
        """Return the model of so many samples."""
        from tvm_distir.planning import Study

        if self.known is not None and size == self.known[0]:
            return self.known[1]
        return Study(self.step.model, **{**self.step.passed_to("load"), "batch": size}).forward

    def __getstate__(self) -> dict[str, object]:
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
        print_message(done)
        return
    name = ", ".join(filter(None, (best.row.why, best.row.candidate.key)))
    fastest = f"best {units.duration(best.time_s)} ({name})"
    print_message(f"{done}; {fastest}" if done else fastest)

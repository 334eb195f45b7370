# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir compare``: compare results, plans and strategies."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm_distir.planning import STAGES, AnalysisOptions
from tvm_distir.support import UsageError

from .analyze import analyze_step
from .options import add_help_strategies, add_options, read_planned_step
from .terminal import print_result


class _Way(argparse.Action):
    """Collects plans and strategies in the order of the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option: str | None = None,
    ) -> None:
        """Add a plan or strategy."""
        namespace.operands_by_option = [*namespace.operands_by_option, (self.dest, values)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.set_defaults(registers=True, operands_by_option=[])
    parser.add_argument(
        "operands",
        metavar="RESULT",
        nargs="+",
        help="A .json result, a folder of `analyze -o`, or a folder of these; the first operand "
        "is the MODEL if there are plans or strategies.",
    )
    parser.add_argument("--plan", action=_Way, metavar="P.json", help="Add a plan; repeatable.")
    parser.add_argument(
        "--strategy", action=_Way, metavar="NAME[:k=v,...]", help="Add a strategy; repeatable."
    )
    add_help_strategies(parser)
    parser.add_argument(
        "--mesh",
        action="append",
        default=[],
        metavar="dp=2,tp=4",
        help="Set the mesh of all strategies, or of each in order if repeated.",
    )
    add_options(
        parser,
        AnalysisOptions,
        STAGES,
        without=("plan", "strategy", "mesh", "advice"),
        repeated=("system", "stack"),
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")


def run(arguments: argparse.Namespace) -> int:
    """Analyze the plans and strategies, read the results, print the comparison."""
    tasks = _tasks(arguments) if arguments.operands_by_option else []
    if not tasks and arguments.system:
        raise _fault(
            "--system needs plans or strategies", "Add --plan or --strategy, or omit --system."
        )
    from tvm_distir.core.rewriting import gc_paused
    from tvm_distir.interface.report.comparison import compare
    from tvm_distir.interface.report.document import to_json
    from tvm_distir.planning import StageMemo

    operands: list[Any] = []
    memo = StageMemo()
    for task in tasks:
        with gc_paused():
            operands.append(analyze_step(task, memo=memo).to_dict())
    table = compare(*operands, *arguments.operands[1 if tasks else 0 :])
    first = [
        step.named(_name(task, arguments))
        for step, task in zip(table.outcomes, tasks, strict=False)
    ]
    table = replace(table, outcomes=(*first, *table.outcomes[len(first) :]))
    print_result(to_json(table.to_dict()) if arguments.json else table.to_text())
    return 0


def _fault(problem: str, remedy: str) -> UsageError:
    return UsageError("DIST0151", problem, location="tvm-distir compare", remedy=remedy)


def _name(task: AnalysisOptions, arguments: argparse.Namespace) -> str:
    """Return the path of a plan or the text of a strategy, with its system and stack if several."""
    name = str(task.plan or task.strategy)
    if len(arguments.system or ()) > 1:
        name += f" on {task.system}"
    return f"{name} by {task.stack}" if len(arguments.stack or ()) > 1 else name


def _tasks(arguments: argparse.Namespace) -> list[AnalysisOptions]:
    """Return the options of the analysis of each plan and strategy on each system."""
    if not arguments.system:
        raise _fault("plans and strategies need a system", "Add --system S.")
    strategies = sum(option == "strategy" for option, _ in arguments.operands_by_option)
    meshes = _meshes(arguments.mesh, strategies)
    model = arguments.operands[0]
    tasks = []
    for option, value in arguments.operands_by_option:
        chosen = {"plan": None, "strategy": None, "mesh": None, option: value}
        if option == "strategy":
            chosen["mesh"] = meshes.pop(0)
        for system, stack in itertools.product(arguments.system, arguments.stack or [None]):
            chosen |= {"system": system, "stack": stack}
            task = argparse.Namespace(**{**vars(arguments), "model": model, **chosen})
            tasks.append(read_planned_step(task, AnalysisOptions))
    return tasks


def _meshes(texts: Sequence[str], strategies: int) -> list[str | None]:
    """Return the mesh of each strategy."""
    if len(texts) == 1 and strategies:
        return [texts[0]] * strategies
    if texts and len(texts) != strategies:
        raise _fault(
            f"{len(texts)} meshes for {strategies} strategies",
            "Give a single --mesh, or a --mesh per strategy.",
        )
    return list(texts) or [None] * strategies

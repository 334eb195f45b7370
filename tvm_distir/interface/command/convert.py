# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir convert``: convert a model to another format and IR level."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tvm_distir.core.analysis import LEVELS
from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError

from .formats import FORMATS, format_of
from .options import add_model_options, model_inputs, read_planned_step
from .outputs import Outputs
from .stages import study_of

if TYPE_CHECKING:
    from tvm import ir

    from tvm_distir.planning import Study


_LEVELS = tuple(LEVELS.values())
_UNTIL = {"annotated": "annotate", "distributed": "propagate", "legalized": "optimize"}
"""The pass that ends at a level."""
_FROM = ("annotate", "propagate", "order", "lower")
"""The first pass from each level."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model_options(parser)
    endings = ", ".join(
        f"{module_format.ending} ({module_format.what})" for module_format in FORMATS
    )
    parser.add_argument("out", metavar="OUT", help=f"The output file: {endings}.")
    parser.add_argument(
        "--level",
        metavar="LEVEL",
        help=f"Set the IR level: {', '.join(_LEVELS)}, or 1 to 5 (default: local with a plan, "
        "otherwise the level of the input).",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, run the passes up to the level, write."""
    module_format, level = format_of(arguments.out), _level(arguments.level)
    step = read_planned_step(arguments, StepOptions, planless=True)
    planned = step.plan is not None or step.strategy is not None
    if level is None and (planned or module_format.level is not None):
        level = module_format.level or "local"
    if module_format.level is not None and level != module_format.level:
        raise _fault(
            f"{module_format.what} supports level {module_format.level} only",
            f"Write --to {module_format.level}.",
        )
    outputs = Outputs(model_inputs(step))
    target = outputs.reserve(arguments.out, "OUT")
    outputs.add(target, module_format.write(_converted(study_of(step, planless=True), level)))
    outputs.write()
    return 0


def _fault(problem: str, remedy: str, option: str = "--level") -> UsageError:
    return UsageError("DIST0151", problem, location=option, remedy=remedy)


def _level(text: str | None) -> str | None:
    """Read a level, by name or number."""
    numbers = {str(number): name for number, name in LEVELS.items()}
    if text is None or text in _LEVELS:
        return text
    if text not in numbers:
        raise UsageError(
            "DIST0152", f'there is no level "{text}"',
            location="--level", remedy=f"Use {', '.join(_LEVELS)}, or 1 to 5.",
        )  # fmt: skip
    return numbers[text]


def _converted(study: Study, level: str | None) -> ir.IRModule:
    """Return the module at a level, or unchanged without a level."""
    from tvm_distir.core.analysis import level_of
    from tvm_distir.core.plan import plan_of_meshes
    from tvm_distir.planning import Study

    mod = study.step
    if level is None:
        return mod
    source = _LEVELS.index(level_of(mod))
    position = _LEVELS.index(level)
    if position < source:
        raise _fault(
            f"a {_LEVELS[source]} module cannot become a {level} module",
            "Convert its source module.",
        )
    if position == source:
        return mod
    if not study.is_planned:
        if source == 0:
            raise _fault(f"--to {level} needs a plan", "Add --plan, or --strategy and --mesh.")
        plan = plan_of_meshes(mod)
        study = Study(mod, plan, system=study.system, **study.passed_to("distribute"))
    return study.distribute(_FROM[source], _UNTIL.get(level))

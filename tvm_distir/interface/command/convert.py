# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir convert``: a model from any form into another, at any level."""

from __future__ import annotations

import argparse
from typing import Any

from tvm_distir.core import LEVELS
from tvm_distir.support import UsageError

from .forms import FORMS, form_of
from .options import add_model_options, check_model_options, check_sizes, find_model, model_inputs
from .outputs import Outputs
from .stages import study_of
from .terminal import say

_LEVELS = tuple(LEVELS.values())
_UNTIL = {"annotated": "annotate", "distributed": "propagate", "legalized": "optimize"}
"""The pass that ends at a level."""
_FROM = ("annotate", "propagate", "legalize", "lower")
"""By level the pass that begins there."""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "convert",
        help="write a model in another form, at any level",
        description="Read a model in any form and write it in another, as the file ends. Weights "
        "stay where they are: the module has them as parameters.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    endings = ", ".join(f"{form.ending} ({form.what})" for form in FORMS)
    parser.add_argument("out", metavar="OUT", help=f"the file to write: {endings}")
    parser.add_argument(
        "--to",
        metavar="LEVEL",
        help=f"{', '.join(_LEVELS)}, or 1 to 5; local if there is a plan, else that of the input",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, run the passes up to the level, write."""
    form, level = form_of(arguments.out), _level(arguments.to)
    planned = arguments.plan is not None or arguments.strategy is not None
    if planned:
        axes = check_model_options(arguments)
    else:
        axes = check_sizes(arguments)
        find_model(arguments)
    if level is None and (planned or form.level is not None):
        level = form.level or "local"
    if form.level is not None and level != form.level:
        raise _fault(f"{form.what} is of level {form.level} only", f"Write --to {form.level}.")
    outputs = Outputs(model_inputs(arguments))
    target = outputs.promise(arguments.out, "OUT")
    outputs.add(target, form.write(_converted(study_of(arguments, axes, planless=True), level)))
    for path in outputs.commit():
        say(f"wrote {path}")
    return 0


def _fault(what: str, remedy: str, option: str = "--to") -> UsageError:
    return UsageError("DIST0151", what, place=option, remedy=remedy)


def _level(text: str | None) -> str | None:
    """Read a level, by name or number."""
    numbers = {str(number): name for number, name in LEVELS.items()}
    if text is None or text in _LEVELS:
        return text
    if text not in numbers:
        raise UsageError(
            "DIST0152",
            f'there is no level "{text}"',
            place="--to",
            remedy=f"Use {', '.join(_LEVELS)}, or 1 to 5.",
        )
    return numbers[text]


def _converted(study: Any, level: str | None) -> Any:
    """The module at a level; as it is without one."""
    from tvm_distir.core import level_of, plan_of_meshes
    from tvm_distir.planning import Study

    mod = study.step
    if level is None:
        return mod
    here = _LEVELS.index(level_of(mod))
    there = _LEVELS.index(level)
    if there < here:
        raise _fault(
            f"a {_LEVELS[here]} module is no {level} one any more", "Convert what it was made of."
        )
    if there == here:
        return mod
    if not study.is_planned:
        if here == 0:
            raise _fault(f"--to {level} needs a plan", "Add --plan, or --strategy and --mesh.")
        study = Study(
            mod,
            plan_of_meshes(mod),
            system=study.system,
            bucket_bytes=study.bucket_bytes,
            ahead_bytes=study.ahead_bytes,
        )
    return study.distribute(_FROM[here], _UNTIL.get(level))

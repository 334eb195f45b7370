# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir explain``: why a value lies where it lies, and what else would have cost."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .options import add_model_options, check_model_options
from .stages import study_of
from .terminal import put


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "explain",
        help="say why a value is placed as it is",
        description=(
            "Say which annotations gave a value its placement, through which ops and calls, "
            "what other placements would cost, and draw which device holds which part."
        ),
        allow_abbrev=False,
    )
    add_model_options(parser)
    parser.add_argument(
        "value",
        metavar="VALUE",
        help="a variable (lv19), one of a function (layer/lv3, layer_1/lv3), or a parameter",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--no-prices",
        dest="prices",
        action="store_false",
        help="leave out what other placements would cost",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load, annotate, explain, print."""
    axes = check_model_options(arguments)
    study = study_of(arguments, axes)
    from tvm_distir.core import AnnotateSharding
    from tvm_distir.interface.explain.explainer import explain

    annotated = AnnotateSharding(study.step_plan.by_rules())(study.step)
    found = explain(annotated, arguments.value, system=study.known_system, prices=arguments.prices)
    if arguments.json:
        put(json.dumps(found.to_dict(), indent=1) + "\n")
    else:
        put(found.to_text())
    return 0

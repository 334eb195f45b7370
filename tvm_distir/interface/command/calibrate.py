# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir calibrate``: fit a system's constants to measured steps."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .help import LateHelp, system_help
from .options import asked_by
from .outputs import Outputs
from .terminal import put


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "calibrate",
        help="fit a system's constants to measured steps or products",
        description=(
            "Fit the constants of a system to measured steps, by programs of the whole "
            "pipeline, or to measured matrix products. Says the errors, out of fold too, and which "
            "constants the rows do not determine."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("system", action=LateHelp, metavar="SYSTEM", late=system_help)
    parser.add_argument(
        "rows", metavar="ROWS.csv", help="with a column iteration_time_ms, or m,k,n,time_us"
    )
    parser.add_argument(
        "--fit", metavar="NAME[,NAME]", default="", help="numbers of links to fit too, as"
        " intra_node.bandwidth_GBps"
    )  # fmt: skip
    parser.add_argument("-o", dest="output", metavar="FILE", help="write the fitted system")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fit, write, say how well."""
    outputs = Outputs({"ROWS": arguments.rows, "SYSTEM": arguments.system})
    written = outputs.promise(arguments.output, "-o")
    from tvm_distir.core import System, to_data
    from tvm_distir.planning import calibrate

    with asked_by("SYSTEM", "DIST0701"):
        system = System.load(arguments.system)
    found = calibrate(
        system,
        arguments.rows,
        fit_also=tuple(filter(None, arguments.fit.split(","))),
        source=f"tvm-distir calibrate, {arguments.rows}",
    )
    if written is not None:
        text = json.dumps(to_data(found.system), indent=1) + "\n"
        outputs.add(written, text)
    outputs.commit()
    put(json.dumps({"schema_version": 1, **found.to_dict()}, indent=1) + "\n"
        if arguments.json else found.to_text())  # fmt: skip
    return 0

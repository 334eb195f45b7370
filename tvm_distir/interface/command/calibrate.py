# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir calibrate``: fit a system's constants to measured steps."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

from tvm_distir.support import option

from .help import SYSTEM_HELP
from .options import WorkerOptions, add_options, asked_by, read_options
from .outputs import Outputs
from .search_options import parse_names
from .terminal import print_result


@dataclass(frozen=True)
class CalibrateOptions(WorkerOptions):
    """Options of ``calibrate``.

    Parameters
    ----------
    fit : tuple of str
        Also fit link parameters, e.g. intra_node.bandwidth_GBps.
    output : str, optional
        Write the fitted system to FILE.
    json : bool
        Print JSON instead of text.
    """

    fit: tuple[str, ...] = option("fit", "NAME[,NAME]", parse_names, usual="", frequent=True)
    output: str | None = option("fit", "FILE", flag="-o", frequent=True)
    json: bool = option("write", default=False, frequent=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("system", metavar="SYSTEM", help=SYSTEM_HELP)
    parser.add_argument(
        "rows",
        metavar="ROWS.csv",
        help="Measurements with a column iteration_time_ms, or columns m,k,n,time_us.",
    )
    add_options(parser, CalibrateOptions, ("fit",))
    add_options(parser, WorkerOptions)
    add_options(parser, CalibrateOptions, ("write",))


def run(arguments: argparse.Namespace) -> int:
    """Fit, write the system, print the errors."""
    outputs = Outputs({"ROWS": arguments.rows, "SYSTEM": arguments.system})
    options = read_options(arguments, CalibrateOptions)
    target = outputs.reserve(options.output, "-o")
    from tvm_distir.hardware import System, to_data
    from tvm_distir.planning import calibrate

    with asked_by("SYSTEM", "DIST0701"):
        system = System.load(arguments.system)
    calibration = calibrate(
        system, arguments.rows, fit_also=options.fit,
        source=f"tvm-distir calibrate, {arguments.rows}", workers=options.workers,
    )  # fmt: skip
    outputs.add(target, json.dumps(to_data(calibration.system), indent=1) + "\n")
    outputs.commit()
    print_result(json.dumps({"schema_version": 1, **calibration.to_dict()}, indent=1) + "\n"
        if options.json else calibration.to_text())  # fmt: skip
    return 0

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir ui``: write a page that sorts, filters and compares saved results."""

from __future__ import annotations

import argparse
from pathlib import Path

from .outputs import Outputs
from .terminal import print_message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="+", help="A folder with results, or a file."
    )
    about = "Write to a file (default: results.html)."
    parser.add_argument("-o", dest="out", metavar="FILE", default="results.html", help=about)
    parser.set_defaults(registers=True)


def run(arguments: argparse.Namespace) -> int:
    """Read the results, and write the page."""
    from tvm_distir.interface.report.results_page import read_steps, results_page

    outputs = Outputs(
        {f"FOLDER {name}": name for name in arguments.folders if Path(name).is_file()}
    )
    target = outputs.reserve(arguments.out, "-o")
    steps = read_steps([Path(name) for name in arguments.folders])
    outputs.add(
        target, results_page(steps, ", ".join(arguments.folders), Path(arguments.out).parent)
    )
    for path in outputs.commit():
        print_message(f"wrote {path}: {len(steps.rows)} steps")
    return 0

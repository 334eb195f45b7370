# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``tvm-distir MODEL --gpus 8xh100``: what a model does on some devices, in one answer."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

from tvm_distir.planning import AnalysisOptions
from tvm_distir.support import UsageError

from .options import add_model, add_options, read_step
from .resumable import begin
from .terminal import print_answer

_GPUS = re.compile(r"(?:(\d+)\s*[xX*]\s*)?(\S+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    add_model(parser)
    parser.add_argument(
        "--gpus", required=True, metavar="8xh100",
        help="Set the number of devices and their system, one of `tvm-distir systems` or a file.",
    )  # fmt: skip
    add_options(
        parser, AnalysisOptions, ("load", "train"), names=("kernels", "quantize", "price"),
        without=("micro_batches",),
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")


def is_question(words: list[str], commands: set[str]) -> bool:
    """Return whether the first word is a MODEL in the place of a command."""
    first = words[0] if words else ""
    asks = any(word == "--gpus" or word.startswith("--gpus=") for word in words)
    return asks and first not in commands and not first.startswith("-")


def read_gpus(text: str) -> tuple[int, str]:
    """Return the number of devices and the name of their system, as in ``8xh100``.

    Raises
    ------
    UsageError
        DIST0152 where the text is no such thing.
    """
    outcome = _GPUS.fullmatch(text.strip())
    count = int(outcome.group(1) or 1) if outcome else 0
    if outcome is None or count < 1:
        remedy = "Write a number and a system: 8xh100."
        raise UsageError("DIST0152", f'"{text}" names no devices', location="--gpus", remedy=remedy)
    return count, outcome.group(2)


def run(arguments: argparse.Namespace) -> int:
    """Try the usual plans, and print them."""
    devices, name = read_gpus(arguments.gpus)
    if arguments.train and arguments.optimizer is None:
        arguments.optimizer = "adamw"
    step = replace(read_step(arguments, AnalysisOptions), system=name)
    try:
        system = begin(step, "", None)
    except UsageError as error:
        raise error.placed(lambda option: "--gpus" if option == "--system" else option) from error
    from tvm_distir.interface.answer import answer

    outcome = answer(replace(step, system=system), devices, name)
    print_answer(outcome.to_dict(), outcome.to_text(), arguments.json)
    return 0 if outcome.best is not None else 3

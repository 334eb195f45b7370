# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What a program carries besides its work, and how it is simulated: times, storage, kernels."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

ALLOCATORS_HELP = "whose memory: framework (the default), or tvm, the storage plan that `run` takes"


def add_exporting(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a program carries."""
    parser.add_argument("--allocator", metavar="A", default="framework", help=ALLOCATORS_HELP)
    parser.add_argument(
        "--measure",
        action="store_true",
        help="time each kernel on this machine, as `run` would call it; the system's links remain",
    )
    add_kernels(parser)


def add_kernels(parser: argparse.ArgumentParser) -> None:
    """Add ``--kernels``."""
    parser.add_argument(
        "--kernels",
        metavar="P",
        help="kernel profile (eager, megatron, ...) or its file; else that of the system",
    )


def exported(local: Any, arguments: argparse.Namespace) -> Any:
    """Program of a level-5 module, with times and storage where these are asked for."""
    if arguments.measure:
        from tvm_distir.execution import measure

        program = measure(local)
    else:
        from tvm_distir.performance import export

        program = export(local)
    if arguments.allocator != "tvm":
        return program
    from tvm_distir.execution import plan_storage

    return replace(program, storage=plan_storage(local))

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tvm_distir.support import DistIRError, UsageError

from .help import (
    HelpStrategies,
    LateHelp,
    get_to_work,
    optimizer_names,
    strategy_names,
    system_help,
)
from .option_values import MESH_REMEDY, parse_batch, parse_dims, parse_mesh


@contextmanager
def asked_by(option: str, *codes: str) -> Iterator[None]:
    """Take errors of these codes for faults of the command line: they exit with 2 (UsageError)."""
    try:
        yield
    except DistIRError as error:
        if error.code not in codes:
            raise
        place = option if error.place in ("", option[2:], "train_step") else error.place
        raise UsageError(error.code, error.what, place=place, remedy=error.remedy) from error


@contextmanager
def named_by_options(*keywords: str) -> Iterator[None]:
    """Name options where an error names the keywords that they are in Python."""
    try:
        yield
    except UsageError as error:
        if error.place not in keywords:
            raise
        raise error.placed(lambda place: f"--{place}") from error


def add_dim_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--dim``."""
    parser.add_argument(
        "--dim",
        action="append",
        metavar="NAME=SIZE",
        help="the size of a symbolic dim, as seq=1024; may be given again",
    )


def add_entry_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--entry``."""
    parser.add_argument(
        "--entry",
        metavar="NAME",
        help="the function, of a module with several entry points, such as prefill and decode",
    )


def add_model_options(parser: argparse.ArgumentParser, system_required: bool = False) -> None:
    """Add MODEL, the plan or strategy, the mesh, the batch, the system and the training step."""
    add_model(parser)
    add_entry_option(parser)
    parser.add_argument("--plan", metavar="P.json", help="the plan, as a JSON file")
    parser.add_argument(
        "--strategy",
        action=LateHelp,
        metavar="NAME[:k=v,...][+NAME...]",
        late=lambda: f"make the plan: {', '.join(strategy_names())}; several are joined with +",
    )
    parser.add_argument(
        "--help-strategies",
        action=HelpStrategies,
        help="print the strategies with their options and exit",
    )
    parser.add_argument(
        "--mesh", metavar="dp=2,tp=4", help="mesh axes and sizes, major first (with --strategy)"
    )
    add_system(parser, system_required)
    add_training(parser)
    add_recompute(parser)
    add_overlap(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and its sizes."""
    parser.set_defaults(registers=True)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a .onnx, .pt2, .mlir or .json file, a .py of TVMScript, or zoo:NAME?key=value,...",
    )
    parser.add_argument(
        "--batch", metavar="N", help="set the batch dimension of the model to N (whole batch)"
    )
    add_dim_option(parser)


def add_system(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add ``--system``."""
    parser.add_argument(
        "--system",
        action=LateHelp,
        required=required,
        metavar="S",
        late=lambda: f"{system_help()}; its times decide what the plan leaves open",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add ``--train`` and the options of a training step, but for ``--recompute``."""
    parser.add_argument(
        "--train",
        action="store_true",
        help="make a training step of the model: loss, gradients and the optimizer's update",
    )
    parser.add_argument(
        "--loss",
        metavar="NAME",
        help="with --train: cross_entropy (the default), mse, or OUTPUT:NAME*WEIGHT,...",
    )
    parser.add_argument(
        "--optimizer",
        action=LateHelp,
        metavar="NAME[:k=v,...]",
        late=lambda: f"with --train: {', '.join(optimizer_names())}; sgd if none is given",
    )
    parser.add_argument(
        "--clip", metavar="NORM", help="with --train: most that the norm of all gradients may be"
    )
    parser.add_argument(
        "--loss-scale", metavar="S", help="with --train: scale of the loss, a number or dynamic"
    )
    parser.add_argument(
        "--master",
        action="store_true",
        default=None,
        help="with --train: float32 copies of half-precision weights, which are updated",
    )
    parser.add_argument(
        "--freeze",
        metavar="PATTERN",
        action="append",
        help="with --train: weights that are not trained, as wte.*; may be given again",
    )


def add_recompute(parser: argparse.ArgumentParser) -> None:
    """Add ``--recompute`` of one step."""
    parser.add_argument(
        "--recompute",
        metavar="POLICY",
        help="with --train: what the backward part makes again: none, megatron, attention, core, "
        "selective, full, checkpoint, cut:SHARE, NAME=POLICY,... for functions by name, or "
        "auto[:memory_gib=G,...], the least within the memory of a device",
    )


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """Add the bounds of what joins and overlaps collectives."""
    parser.add_argument(
        "--bucket-bytes",
        metavar="N",
        help="join small collectives up to N bytes; 0 none (reductions of training steps for a "
        "system: 26214400 if not given, all else: none)",
    )
    parser.add_argument(
        "--ahead-bytes",
        metavar="N",
        help="let collectives of training steps for a system run beside other work that takes N "
        "bytes more at most; 0 none (a sixteenth more if not given)",
    )


ALLOCATORS_HELP = "whose memory: framework (the default), or tvm, the storage plan that `run` takes"


def add_exporting(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a program carries, and how it is simulated."""
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


TRAINING = ("loss", "optimizer", "clip", "loss_scale", "master", "freeze", "recompute")
"""Options of a training step."""


def check_training(arguments: argparse.Namespace, others: Sequence[str] = ()) -> None:
    """Refuse options of a training step without ``--train``, but for ``others``."""
    for option in TRAINING:
        if option in others:
            continue
        if getattr(arguments, option) is not None and not arguments.train:
            raise UsageError(
                "DIST0151",
                f"--{option.replace('_', '-')} needs --train",
                place=f"tvm-distir {arguments.command}",
                remedy="Add --train.",
            )


def model_inputs(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Paths that the options of :func:`add_model_options` read, by option."""
    from tvm_distir.models import model_file

    return {
        "MODEL": model_file(arguments.model),
        "--plan": arguments.plan,
        "--system": arguments.system,
    }


def check_model_options(arguments: argparse.Namespace) -> dict[str, int] | None:
    """Refuse a plan and a strategy together; read the mesh; look for the model's file.

    Neither is needed for TVMScript and StableHLO, which may have annotations.

    TVM is imported behind this, not before.

    Returns
    -------
    axes : dict of str to int or None
        The mesh of ``--mesh``; None when it is left to the plan.
    """
    from tvm_distir.models import may_be_annotated

    both = arguments.plan is not None and arguments.strategy is not None
    neither = arguments.plan is None and arguments.strategy is None
    if both or (neither and not may_be_annotated(arguments.model)):
        raise UsageError(
            "DIST0151",
            "--plan and --strategy are both given" if both else "neither --plan nor --strategy",
            place=f"tvm-distir {arguments.command}",
            remedy="Give exactly one of them.",
        )
    axes = check_sizes(arguments)
    if axes is None and arguments.strategy is not None:
        raise UsageError(
            "DIST0151",
            "--strategy needs a mesh",
            place=f"tvm-distir {arguments.command}",
            remedy=MESH_REMEDY,
        )
    find_model(arguments)
    return axes


def find_model(arguments: argparse.Namespace) -> None:
    """Look for the model's file, then import TVM."""
    from tvm_distir.models import check_model

    check_model(arguments.model)
    get_to_work()


def check_sizes(arguments: argparse.Namespace) -> dict[str, int] | None:
    """Read batch, dims and mesh.

    Returns
    -------
    axes : dict of str to int or None
        The mesh of ``--mesh``.
    """
    arguments.batch = parse_batch(arguments.batch)
    arguments.dims = parse_dims(arguments.dim)
    check_training(arguments)
    with asked_by("--mesh", "DIST0201"):
        return None if arguments.mesh is None else parse_mesh(arguments.mesh)

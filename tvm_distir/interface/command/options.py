# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tvm_distir.support import DistIRError, UsageError

from .help import (
    HelpStrategies,
    LateHelp,
    LateHelps,
    get_to_work,
    optimizer_names,
    strategy_names,
    system_help,
)
from .option_values import MESH_REMEDY, parse_batch, parse_count, parse_dims, parse_mesh


@contextmanager
def asked_by(option: str, *codes: str) -> Iterator[None]:
    """Convert errors with these codes to usage errors, which exit with 2."""
    try:
        yield
    except DistIRError as error:
        if error.code not in codes:
            raise
        place = option if error.place in ("", option[2:], "train_step") else error.place
        raise UsageError(error.code, error.what, place=place, remedy=error.remedy) from error


@contextmanager
def named_by_options(*keywords: str) -> Iterator[None]:
    """Replace keywords by options as the places of usage errors."""
    try:
        yield
    except UsageError as error:
        if error.place not in keywords:
            raise
        raise error.placed(lambda place: f"--{place.replace('_', '-')}") from error


def add_dim_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--dim``."""
    parser.add_argument(
        "--dim",
        action="append",
        metavar="NAME=SIZE",
        help="Set the size of a symbolic dim, e.g. seq=1024; repeatable.",
    )


def add_seq_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--seq``."""
    parser.add_argument(
        "--seq",
        metavar="N",
        help="Set the tokens of a sample of hf:NAME, config.json or zoo:NAME (as the key seq).",
    )


def set_seq(arguments: argparse.Namespace) -> None:
    """Replace ``--seq`` by a key of MODEL."""
    from tvm_distir.models import model_with_seq

    if arguments.seq is not None:
        size = parse_count(arguments.seq, "--seq", "Give the tokens of a sample, e.g. --seq 4096.")
        with asked_by("--seq", "DIST0313"):
            arguments.model, arguments.seq = model_with_seq(arguments.model, size), None


def add_entry_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--entry``."""
    parser.add_argument(
        "--entry",
        metavar="NAME",
        help="Select the function of a module with several entry points, e.g. prefill.",
    )


def add_model_options(parser: argparse.ArgumentParser, system_required: bool = False) -> None:
    """Add MODEL, the plan or strategy, the mesh, the batch, the system and the training step."""
    add_model(parser)
    add_entry_option(parser)
    parser.add_argument("--plan", metavar="P.json", help="Read the plan from a JSON file.")
    parser.add_argument(
        "--strategy",
        action=LateHelp,
        metavar="NAME[:k=v,...][+NAME...]",
        late=lambda: f"Create the plan by strategies joined with +: {', '.join(strategy_names())}.",
    )
    parser.add_argument(
        "--help-strategies",
        action=HelpStrategies,
        help="List the strategies with their options and exit.",
    )
    parser.add_argument(
        "--mesh",
        metavar="dp=2,tp=4",
        help="Set the mesh axes and their sizes, major first; needs --strategy.",
    )
    add_system(parser, system_required)
    add_training(parser)
    add_recompute(parser)
    add_overlap(parser)


def add_dispatch(parser: argparse.ArgumentParser) -> None:
    """Add ``--dispatch``."""
    parser.add_argument(
        "--dispatch",
        metavar="LIBRARY",
        help="Call the kernels of a library for matrix products, attention and convolutions: torch "
        "(default: the kernels of TVM).",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, ``--batch``, ``--dim`` and ``--seq``."""
    parser.set_defaults(registers=True)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="A .onnx, .pt2, .mlir, .json or .py (TVMScript) file, a config.json of the Hugging "
        "Face hub, hf:NAME, or zoo:NAME?key=value,...",
    )
    parser.add_argument("--batch", metavar="N", help="Set the global batch size in samples.")
    add_dim_option(parser)
    add_seq_option(parser)


def add_system(parser: argparse.ArgumentParser, required: bool, repeated: bool = False) -> None:
    """Add ``--system``, which is a list if it may be ``repeated``."""
    parser.add_argument(
        "--system",
        action=LateHelps if repeated else LateHelp,
        required=required,
        metavar="S",
        late=lambda: (
            f"{system_help()} Its times determine the placements that the plan leaves open."
            + (" Repeat it to compare systems." if repeated else "")
        ),
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add ``--train`` and the options of a training step except ``--recompute``."""
    parser.add_argument(
        "--train",
        action="store_true",
        help="Build a training step: loss, gradients and optimizer update.",
    )
    parser.add_argument(
        "--loss",
        metavar="NAME",
        help="Set the loss: cross_entropy (default), mse or OUTPUT:NAME*WEIGHT,...; needs --train.",
    )
    parser.add_argument(
        "--optimizer",
        action=LateHelp,
        metavar="NAME[:k=v,...]",
        late=lambda: (
            f"Set the optimizer (default: sgd): {', '.join(optimizer_names())}; needs --train."
        ),
    )
    parser.add_argument(
        "--clip", metavar="NORM", help="Clip the global gradient norm to NORM; needs --train."
    )
    parser.add_argument(
        "--loss-scale", metavar="S", help="Set the loss scale, a number or dynamic; needs --train."
    )
    parser.add_argument(
        "--master",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="Keep float32 master copies of half-precision weights (default: on for systems of "
        "schema version 2, as trainers do); needs --train.",
    )
    parser.add_argument(
        "--micro-batches",
        metavar="M",
        help="Accumulate gradients over M micro-batches, with or without a pipeline; needs "
        "--train.",
    )
    parser.add_argument(
        "--freeze",
        metavar="PATTERN",
        action="append",
        help="Freeze the weights that match PATTERN, e.g. wte.*; needs --train; repeatable.",
    )


def add_recompute(parser: argparse.ArgumentParser) -> None:
    """Add ``--recompute``."""
    parser.add_argument(
        "--recompute",
        metavar="POLICY",
        help="Set the recomputation (activation checkpointing) policy: none, megatron, attention, "
        "core, selective, alternate, full, checkpoint, cut:SHARE, NAME=POLICY,... by function, or "
        "auto[:memory_gib=G,...] for the least that fits in device memory; needs --train.",
    )


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """Add the limits of bucketing and overlap of collectives."""
    parser.add_argument(
        "--bucket-bytes",
        metavar="N",
        help="Set the bucket size of small collectives in bytes; 0 disables bucketing, and "
        "unit gathers and reduces each layer's weights by one flat buffer, as FSDP does, and makes "
        "buckets of 25 MiB of other reductions (default: unit for training steps with a system, "
        "otherwise 0).",
    )
    parser.add_argument(
        "--ahead-bytes",
        metavar="N",
        help="Set the extra memory in bytes for overlapping collectives with compute in training "
        "steps with a system; 0 disables overlap (default: 1/16 of the peak memory, and the "
        "weights of a layer).",
    )
    parser.add_argument(
        "--overlap-activations",
        action="store_true",
        help="Overlap collectives of activations, such as those of tensor parallelism, with other "
        "work; by default they block, as in most frameworks.",
    )
    parser.add_argument(
        "--overlap-optimizer",
        action="store_true",
        help="Overlap a distributed optimizer with the step: gather updated weights beside the "
        "first forward pass of the next step, and reduce gradients beside the backward pass of the "
        "last micro-batch (Megatron-LM: --overlap-param-gather, --overlap-grad-reduce).",
    )


ALLOCATORS_HELP = (
    "Set the memory model: framework (default), the live tensors; pytorch or pytorch-expandable, "
    "what PyTorch reserves for them with the CUDA context and NCCL; or tvm, the storage plan of "
    "`run`."
)


def add_exporting(parser: argparse.ArgumentParser) -> None:
    """Add the options of export and simulation."""
    parser.add_argument("--allocator", metavar="A", default="framework", help=ALLOCATORS_HELP)
    parser.add_argument(
        "--measure",
        action="store_true",
        help="Measure each kernel on this machine; link times are those of the system.",
    )
    add_kernels(parser)
    add_price(parser)
    parser.add_argument(
        "--attention",
        choices=("fused", "written"),
        help="Make softmax attention one op, or leave its products (default: of the profile).",
    )


def add_kernels(parser: argparse.ArgumentParser) -> None:
    """Add ``--kernels``."""
    parser.add_argument(
        "--kernels",
        metavar="P",
        help="Set the kernel profile: eager, megatron, ... or a file (default: of the system).",
    )


def add_price(parser: argparse.ArgumentParser) -> None:
    """Add ``--price``."""
    parser.add_argument(
        "--price",
        metavar="USD",
        help="Set the price of a device and an hour in dollars (default: of the system).",
    )


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add ``--jobs``."""
    parser.add_argument(
        "--jobs",
        metavar="N",
        help="Use N processes (default: 1); the results do not depend on N.",
    )


def jobs_of(arguments: argparse.Namespace) -> int | None:
    """Return the number of ``--jobs``; None without the option."""
    return None if arguments.jobs is None else parse_count(arguments.jobs, "--jobs")


TRAINING = (
    *("loss", "optimizer", "clip", "loss_scale", "master", "micro_batches", "freeze", "recompute"),
)
"""Options of a training step."""


def check_training(arguments: argparse.Namespace, others: Sequence[str] = ()) -> None:
    """Refuse options of a training step without ``--train``, except ``others``."""
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
    """Return the paths that the options of :func:`add_model_options` read, by option."""
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
            "--plan and --strategy are mutually exclusive" if both else "no --plan or --strategy",
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
    """Check that the file of the model exists, then import TVM."""
    from tvm_distir.models import check_model

    check_model(arguments.model)
    get_to_work()


def check_sizes(arguments: argparse.Namespace) -> dict[str, int] | None:
    """Read batch, dims, tokens of a sample and mesh.

    Returns
    -------
    axes : dict of str to int or None
        The mesh of ``--mesh``.
    """
    arguments.batch = parse_batch(arguments.batch)
    arguments.dims = parse_dims(arguments.dim)
    set_seq(arguments)
    check_training(arguments)
    with asked_by("--mesh", "DIST0201"):
        return None if arguments.mesh is None else parse_mesh(arguments.mesh)

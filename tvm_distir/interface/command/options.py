# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Offer the declared options of a step in commands, and read them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tvm_distir.planning import StepOptions, TrainingOptions
from tvm_distir.support import (
    MESH_REMEDY,
    CommandOption,
    DistIRError,
    UsageError,
    option,
    option_fields,
    parameter_texts,
    parse_count,
)

from .help import HelpStrategies, get_to_work, mark_rare

_Options = TypeVar("_Options", bound=StepOptions)
_Read = TypeVar("_Read")
TRAINING = {
    name: declared
    for options in (TrainingOptions, StepOptions)
    for name, declared in option_fields(options).items()
    if declared.stage == "train" and name != "train"
}
"""Options that need ``--train``, by field."""


@dataclass(frozen=True)
class WorkerOptions:
    """Options of commands that use several processes.

    Parameters
    ----------
    workers : int, optional
        Use N processes (default: 1); the results do not depend on N.
    """

    workers: int | None = option("run", "N", parse_count)


@contextmanager
def asked_by(option: str, *codes: str) -> Iterator[None]:
    """Convert errors with these codes to usage errors, which exit with 2."""
    try:
        yield
    except DistIRError as error:
        if error.code not in codes:
            raise
        location = option if error.location in ("", option[2:], "train_step") else error.location
        raise UsageError(error.code, error.what, location=location, remedy=error.remedy) from error


@contextmanager
def named_by_options(*keywords: str) -> Iterator[None]:
    """Replace keywords by options as the places of usage errors."""
    try:
        yield
    except UsageError as error:
        if error.location not in keywords:
            raise
        raise error.placed(lambda location: f"--{location.replace('_', '-')}") from error


def add_option(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    declared: CommandOption,
    required: bool = False,
    repeated: bool = False,
) -> None:
    """Add a declared option, which is a list if it may be ``repeated``."""
    settings: dict[str, Any] = {"required": required, "dest": declared.key}
    if declared.choices:
        settings["choices"] = declared.choices
    elif declared.metavar:
        settings |= {"metavar": declared.metavar, "default": declared.usual}
        if declared.repeated or repeated:
            settings["action"] = "append"
    else:
        only = declared.default is False
        settings["action"] = "store_true" if only else argparse.BooleanOptionalAction
    more = f" Repeat it to compare {declared.name}s." if repeated else ""
    settings["help"] = declared.help.replace("%", "%%") + more
    action = parser.add_argument(declared.flag, **settings)
    if not (declared.frequent or required):
        mark_rare(action)


def add_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    options: Any,
    stages: Collection[str] = (),
    *,
    names: Collection[str] = (),
    without: Collection[str] = (),
    required: Collection[str] = (),
    repeated: Collection[str] = (),
) -> None:
    """Add the options that a dataclass declares; by default all.

    Parameters
    ----------
    parser : argument parser or group
    options : type
        The dataclass.
    stages, names : collection of str
        The stages whose options are added, and further options.
    without : collection of str
        Options that are left out.
    required, repeated : collection of str
        Options that must be given, and those that may be given several times.
    """
    for name, declared in option_fields(options).items():
        chosen = not (stages or names) or name in names or declared.stage in stages
        if chosen and name not in without:
            add_option(parser, declared, name in required, name in repeated)
            if name == "train":
                add_options(parser, TrainingOptions)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL."""
    parser.set_defaults(registers=True)
    parser.add_argument("model", metavar="MODEL", help=parameter_texts(StepOptions)["model"])


def add_model_options(
    parser: argparse.ArgumentParser,
    stages: Collection[str] = ("load", "plan", "train", "distribute"),
    *,
    options: type = StepOptions,
    required: Collection[str] = (),
) -> None:
    """Add MODEL, and the options of a step up to a distributed module."""
    add_model(parser)
    add_options(parser, options, stages, required=required)
    add_help_strategies(parser)


def add_help_strategies(parser: argparse.ArgumentParser) -> None:
    """Add ``--help-strategies``."""
    about = "List the strategies with their options and exit."
    parser.add_argument("--help-strategies", action=HelpStrategies, help=about)


def add_dispatch(parser: argparse.ArgumentParser) -> None:
    """Add ``--dispatch``."""
    parser.add_argument(
        "--dispatch",
        metavar="LIBRARY",
        default="auto",
        help="Whose kernels compute products, attention and convolutions: torch, numpy or tvm "
        "(default: auto, which is torch where it is installed, else numpy).",
    )


def read_fields(
    arguments: argparse.Namespace, options: Any, without: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of the options that are given, by the fields of a dataclass."""
    values = {}
    for name, declared in option_fields(options).items():
        text = getattr(arguments, declared.key, None)
        if text is not None and name not in without:
            with asked_by(declared.flag, "DIST0201"):
                values[name] = declared.read(text, declared.flag)
    return values


def read_options(arguments: argparse.Namespace, options: Callable[..., _Read]) -> _Read:
    """Return the options that a dataclass declares."""
    return options(**read_fields(arguments, options))


def without_training(declared: CommandOption, command: str) -> UsageError:
    """Return the error of an option of a training step without ``--train``."""
    problem = f"{declared.flag} needs --train"
    return UsageError("DIST0151", problem, location=f"tvm-distir {command}", remedy="Add --train.")


def read_step(
    arguments: argparse.Namespace, options: Callable[..., _Options], without: Collection[str] = ()
) -> _Options:
    """Read the options of a step, and refuse those of a training step without ``--train``.

    Parameters
    ----------
    arguments : argparse.Namespace
    options : type
        The dataclass that declares them.
    without : collection of str
        Fields of which the command has options of its own.
    """
    values = read_fields(arguments, options, without)
    training = read_fields(arguments, TrainingOptions)
    for name, declared in TRAINING.items():
        if name in {*training, *values} and not arguments.train:
            raise without_training(declared, arguments.command)
    if values.get("train"):
        values["train"] = TrainingOptions(**training)
    with asked_by("--seq", "DIST0313"):
        return options(arguments.model, **values).with_seq()


def read_planned_step(
    arguments: argparse.Namespace, options: Callable[..., _Options], planless: bool = False
) -> _Options:
    """Read the options of a step, look for the file of its model, and import TVM.

    A plan and a strategy are refused together. Where neither is given, a mesh is refused too unless
    the module may have annotations; without a mesh an analysis is of one device, and the step of
    other commands must be ``planless``.
    """
    from tvm_distir.models import check_model, may_be_annotated

    location = f"tvm-distir {arguments.command}"
    both = arguments.plan is not None and arguments.strategy is not None
    neither = arguments.plan is None and arguments.strategy is None
    alone = arguments.command in ("analyze", "learn") and arguments.mesh is None
    if both or (neither and not planless and not alone and not may_be_annotated(arguments.model)):
        raise UsageError(
            "DIST0151",
            "--plan and --strategy are mutually exclusive" if both else "no --plan or --strategy",
            location=location, remedy="Give exactly one of them.",
        )  # fmt: skip
    step = read_step(arguments, options)
    step = step.on_one_device() if alone else step
    if step.mesh is None and step.strategy is not None:
        raise UsageError(
            "DIST0151", "--strategy needs a mesh", location=location, remedy=MESH_REMEDY,
        )  # fmt: skip
    check_model(arguments.model)
    get_to_work()
    return step


def model_inputs(step: StepOptions) -> dict[str, Any]:
    """Return the paths that the options read, by option."""
    from tvm_distir.models import model_file

    return {"MODEL": model_file(str(step.model)), "--plan": step.plan, "--system": step.system}

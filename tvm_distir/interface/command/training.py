# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The training step that ``--train`` and its options ask for."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from tvm_distir.support import UsageError

from .options import asked_by
from .values import parse_number


def training_step(
    mod: Any, arguments: argparse.Namespace, system: Any, schedule: Any
) -> Callable[[Any], Any]:
    """What makes the training step that ``--train`` and its options ask for, by what is made again.

    Raises
    ------
    UsageError
        As :func:`training_keywords`.
    """
    from tvm_distir.transforms import train_step

    keywords = training_keywords(arguments)
    return lambda recompute: train_step(
        mod, recompute=recompute, system=system, schedule=schedule, **keywords
    )


def training_keywords(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keywords of ``train_step`` that the options of a training step say.

    Raises
    ------
    UsageError
        DIST0152 where ``--clip`` or an option of the optimizer is no number.
    """
    from tvm_distir.transforms import optimizer_named, read_optimizer

    name, numbers = read_optimizer(arguments.optimizer or "sgd", "--optimizer")
    with asked_by("--optimizer", "DIST0351"):
        optimizer_named(name, numbers)
    return {
        "loss": arguments.loss or "cross_entropy",
        "optimizer": name,
        "clip": 0.0 if arguments.clip is None else parse_number(arguments.clip, "--clip"),
        "loss_scale": 1.0 if arguments.loss_scale is None else arguments.loss_scale,
        "master": bool(arguments.master),
        "frozen": arguments.freeze or (),
        **numbers,
    }


def recompute_asked(
    arguments: argparse.Namespace,
    plan: Any,
    axes: dict[str, int] | None,
    schedule: Any,
    usual: str,
) -> Any:
    """What is made again: as the option says, or the plan, or what is usual.

    ``auto`` takes activations to be cut evenly over the mesh, of a stage where there are some,
    where it does not say it.

    Raises
    ------
    UsageError
        DIST0151 where both ``--recompute`` and the plan say what is made again.
    """
    said = arguments.recompute
    if said is not None and plan is not None and plan.recompute:
        raise UsageError(
            "DIST0151",
            f'--recompute is given, and the plan {arguments.plan} has "recompute"',
            place="--recompute",
            remedy="Leave one of them out.",
        )
    if said is None:
        return plan.recompute if plan is not None and plan.recompute else usual
    from tvm_distir.planning import evenly_cut

    if axes:
        devices = math.prod(axes.values()) // (schedule.stages if schedule else 1)
    else:
        counts = [mesh.device_count for mesh in plan.meshes] if plan is not None else [1]
        devices = min(counts) if schedule else max(counts)
    return evenly_cut(said, devices)

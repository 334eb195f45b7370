# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Look up optimizers by name, including those of plugins."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tvm_distir.support import Registry, UsageError, nearest, parse_float, shortened
from tvm_distir.transforms.step_faults import wrong_argument

from .ranges import check_range

if TYPE_CHECKING:
    from .protocol import Optimizer

_HERE = __name__.rpartition(".")[0]

OPTIMIZERS = Registry(
    "tvm_distir.optimizers",
    {
        "sgd": f"{_HERE}.update_rules:Sgd",
        "adam": f"{_HERE}.update_rules:Adam",
        "adamw": f"{_HERE}.update_rules:AdamW",
        "lion": f"{_HERE}.update_rules:Lion",
        "adamw8bit": f"{_HERE}.eight_bit_rules:AdamW8bit",
        "muon": f"{_HERE}.matrix_rules:Muon",
        "adafactor": f"{_HERE}.matrix_rules:Adafactor",
    },
)
"""Each represents a dataclass of numbers that does what :class:`.protocol.Optimizer` says."""


def optimizer_named(
    name: str, options: Mapping[str, float], others: Collection[str] = ()
) -> Optimizer:
    """Make an optimizer by name.

    Parameters
    ----------
    name : str
    options : mapping of str to float
    others : collection of str
        Names that an unknown option may have been meant for, beside the optimizer's options.

    Raises
    ------
    ModelError
        DIST0351 no such optimizer, no such option of it, or a number out of its range.
    DependencyError
        DIST0114 another package offers it, and it is no dataclass or cannot be loaded.
    """
    if name not in OPTIMIZERS:
        problem = f'there is no optimizer "{name}"'
        raise wrong_argument(problem, nearest(name, OPTIMIZERS.names()))
    kind: Any = OPTIMIZERS.load(name)
    make: Any = kind
    if not is_dataclass(kind):
        raise OPTIMIZERS.offered()[name].fault("it is not a dataclass of options")
    known = [f.name for f in fields(kind)]
    for option in options:
        if option not in known:
            problem = f'the optimizer "{name}" has no option "{option}"'
            raise wrong_argument(problem, nearest(option, [*known, *others]))
    for field in fields(kind):
        if field.name in options:
            check_range(name, field, float(options[field.name]))
    optimizer: Optimizer = make(**{key: float(value) for key, value in options.items()})
    return optimizer


def read_optimizer(text: str, location: str) -> tuple[str, dict[str, float]]:
    """Parse ``adam:rate=0.001,beta1=0.9``, a name and numbers (UsageError DIST0152)."""
    name, colon, rest = text.partition(":")
    options: dict[str, float] = {}
    for item in rest.split(",") if colon else []:
        key, equals, value = (word.strip() for word in item.partition("="))
        number = parse_float(value)
        if not key or not equals or not math.isfinite(number) or key in options:
            problem = f'"{shortened(item)}" is not an option with a number'
            remedy = "Write NAME:key=value,..., e.g. adam:rate=0.001."
            raise UsageError("DIST0152", problem, location=location, remedy=remedy)
        options[key] = number
    return name.strip(), options

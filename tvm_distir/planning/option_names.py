# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Tell columns of tables that a user may mean as options from columns that are only notes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection
from dataclasses import fields

from tvm_distir.support import closest, option_fields
from tvm_distir.transforms import train_step

from .step_options import StepOptions, TrainingOptions

_OF_COMMANDS = frozenset(
    "cuts devices kv_dtype replicas router scheduler stages tensor workload".split()
)
"""Options of commands that determine predictions, and that are no arguments of a study."""
_NO_OPTIONS = frozenset("mod options price".split())
"""Arguments of steps that determine no predictions."""
_TYPING_ERROR = 0.85
"""The similarity to a known name from which a name is taken for a misspelling of it."""


@functools.cache
def option_names() -> frozenset[str]:
    """Return the names of the options of steps, training steps and commands."""
    of_commands = {
        declared.key
        for options in (StepOptions, TrainingOptions)
        for declared in option_fields(options).values()
    }
    of_step = {field.name for field in fields(StepOptions)}
    of_training = inspect.signature(train_step).parameters.keys()
    return frozenset((of_step | of_training | of_commands) - _NO_OPTIONS | _OF_COMMANDS)


def is_misplaced(name: str, known: Collection[str]) -> bool:
    """Return whether an unknown column is an option elsewhere, or nearly one of the known columns.

    Such a column would seem to have an effect. Others are notes, which tables may have.
    """
    if name in known:
        return False
    return name in option_names() or closest(name, known, cutoff=_TYPING_ERROR) is not None

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the options of resumable commands: search and sweep."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_distir.planning import StepOptions
from tvm_distir.support import UsageError

from .help import get_to_work
from .options import asked_by, model_inputs
from .outputs import Outputs
from .stages import STRATEGY_FAULTS, load_system, stopwatch

if TYPE_CHECKING:
    from tvm_distir.hardware import System


def check_resume(resume: bool, recorded: str | None, name: str) -> None:
    """Refuse (DIST0151) ``--resume`` where ``-o``, whose value is ``recorded``, is not given."""
    if resume and recorded is None:
        remedy = f"Name the {'folder' if name == 'DIR' else 'file'}: -o {name}."
        raise UsageError("DIST0151", "--resume needs -o", location="--resume", remedy=remedy)


def outputs_of(step: StepOptions, others: Mapping[str, str | None], force: bool = False) -> Outputs:
    """Check that MODEL exists, and return outputs that protect the files that are read."""
    from tvm_distir.models import check_model

    check_model(str(step.model))
    return Outputs({**model_inputs(step), **others}, force=force)


def begin(step: StepOptions, option: str, strategy: str | None) -> Any:
    """Import TVM, load the system, and check the strategy of an option, if any."""
    get_to_work()
    system: Any = load_system(step.system, stopwatch(), step.price)
    with asked_by("--stack", "DIST0701"):
        stack = step.pinned_stack
    kernels = step.kernels
    if stack is not None:
        system = stack.on(system)
        stated = stack.profile(kernels) if isinstance(kernels, str) else kernels
        kernels = stated or stack.options.kernels
    if kernels is not None:
        from tvm_distir.performance import Profile

        with asked_by("--kernels", "DIST0701"):
            Profile.resolve(kernels)
        system = replace(system, kernels=kernels)
    if strategy:
        from tvm_distir.planning import parse

        with asked_by(option, *STRATEGY_FAULTS):
            parse(strategy)
    return system


def settings_of(
    options: Mapping[str, Any], system: System, files: Mapping[str, str | None]
) -> dict[str, object]:
    """Return all inputs of the results: options, and the contents of the system and files."""
    from tvm_distir.models import model_file

    settings = {**options, "system": hashlib.sha256(repr(system).encode()).hexdigest()}
    for name, path in {"model": model_file(options["model"]), **files}.items():
        if path:
            content = Path(path).read_bytes()
            settings[f"{name}_content"] = hashlib.sha256(content).hexdigest()
    return settings

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define RunInTurn and ExpandSchedule, which expand pipelined steps at levels 1 and 5."""

from __future__ import annotations

from tvm_distir.core import Rewrite, module_pass

from .expand import expand_schedule
from .in_turn import run_in_turn


@module_pass("global")
def RunInTurn() -> Rewrite:
    """Write a pipelined training step as one sequential function for one device.

    Units follow each other in an order that the schedule allows. Modules without stages stay as
    they are.

    Returns
    -------
    Pass
        A module pass. It raises LoweringError DIST0512 for a module that is distributed.
    """
    return run_in_turn


@module_pass("local")
def ExpandSchedule() -> Rewrite:
    """Write a pipelined training step as one program per pipeline rank.

    Units follow each other as the schedule has them, with sends and receives between stages.
    Modules without stages stay as they are.

    Returns
    -------
    Pass
        A module pass. It raises LoweringError DIST0512 if stages do not fit together.
    """
    return expand_schedule

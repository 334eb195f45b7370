# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The pass ``OptimizeCollectives``: those below that never cost anything, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import ir

from ...errors import UsageError, nearest
from .editing import FunctionStep, stepped
from .fuse import FUSE, FuseCollectives
from .merge import MergeReductions, merge_step
from .move import SLICES, MoveGathers, MoveSlices, gathers_step
from .share import CANCEL, SHARE, CancelCollectives, ShareCollectives
from .unused import RemoveUnused, removed

PASSES: dict[str, Callable[[], Any]] = {
    "share": ShareCollectives,
    "merge": MergeReductions,
    "slices": MoveSlices,
    "gathers": MoveGathers,
    "cancel": CancelCollectives,
    "fuse": FuseCollectives,
    "unused": RemoveUnused,
}
"""Names of the level-4 passes, in the order in which ``OptimizeCollectives`` runs them."""


STEPS: dict[str, FunctionStep] = {
    "share": SHARE,
    "merge": merge_step(scatters=False),
    "slices": SLICES,
    "gathers": gathers_step(above=False),
    "cancel": CANCEL,
    "fuse": FUSE,
}
"""Those of them that look at one function at a time."""


def OptimizeCollectives(*, without: Sequence[str] = ()) -> Any:
    """Remove, join and move collectives where that never costs anything; level 4 to level 4.

    The passes of :data:`PASSES`, each as its factory makes it without arguments: none of them
    sends more bytes. See their factories for what they do, and which change the order of a sum.

    Parameters
    ----------
    without : sequence of str
        Passes to leave out.

    Returns
    -------
    pass : tvm.transform.Pass

    Raises
    ------
    UsageError
        DIST0152 for a name that is no pass.
    """
    for name in without:
        if name not in PASSES:
            raise UsageError(
                "DIST0152", f'no pass "{name}"', place="without", remedy=nearest(name, PASSES)
            )
    steps = [step for name, step in STEPS.items() if name not in without]

    @tvm.transform.module_pass(  # type: ignore[untyped-decorator]
        opt_level=0, name="tvm_distir.OptimizeCollectives"
    )
    def optimize_collectives(mod: ir.IRModule, _: Any) -> ir.IRModule:
        mod = stepped(mod, steps, level=4)
        return mod if "unused" in without else removed(mod)

    return optimize_collectives

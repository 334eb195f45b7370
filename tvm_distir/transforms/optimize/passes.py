# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define ``OptimizeCollectives``, a sequence of passes that never increase the cost."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir

from tvm_distir.core.passes import Rewrite, module_pass
from tvm_distir.core.rewriting.native import Readings
from tvm_distir.support import check_choice

from .binding_rewriter import FunctionStep, stepped
from .fuse import FUSE
from .merge import merge_step
from .moved_collectives import SLICES, gathers_step
from .share import CANCEL, SHARE
from .unused import removed

STEPS: dict[str, FunctionStep] = {
    "share": SHARE,
    "merge": merge_step(scatters=False),
    "slices": SLICES,
    "gathers": gathers_step(above=False),
    "cancel": CANCEL,
    "fuse": FUSE,
}
"""The passes of it that look at a single function at a time, by name, in their order."""

NAMES = (*STEPS, "unused")


@module_pass("legalized")
def OptimizeCollectives(*, without: Sequence[str] = ()) -> Rewrite:
    """Remove, merge and move collectives where that never increases the cost.

    The passes of :data:`NAMES`, each as its factory makes it without arguments: none of them
    sends more bytes. See their factories for what they do, and which change the order of a sum.

    Parameters
    ----------
    without : sequence of str
        Passes to omit.

    Returns
    -------
    pass : tvm.transform.Pass

    Raises
    ------
    UsageError
        DIST0152 for a name that is no pass.
    """
    for name in without:
        check_choice(name, "pass", NAMES, "without")
    steps = [step for name, step in STEPS.items() if name not in without]

    def optimize_collectives(mod: ir.IRModule) -> ir.IRModule:
        readings = Readings()
        mod = stepped(mod, steps, 4, readings)
        return mod if "unused" in without else removed(mod, readings)

    return optimize_collectives

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split collectives into a start and a done (level 5)."""

from __future__ import annotations

from typing import Any

from tvm_distir.core import COLLECTIVES, Rewrite, collective_done, module_pass, start

from .editing import Editor, FunctionStep, rewrite_of


@module_pass("local")
def SplitCollectives() -> Rewrite:
    """Split every collective into a start followed by its done.

    ``y = R.dist.all_reduce(x, ...)`` becomes ``t = R.dist.all_reduce_start(x, ...)`` and
    ``y = R.dist.collective_done(t)``. By itself this changes nothing: :func:`ScheduleCollectives`
    moves the two apart.

    Returns
    -------
    pass : tvm.transform.Pass
    """
    return rewrite_of([FunctionStep(_Split, COLLECTIVES)], level=5)


class _Split(Editor):
    def visit(self, var: Any, value: Any, kind: str | None) -> Any:
        """Split a collective."""
        if kind not in COLLECTIVES:
            return value
        flying = self.emit(start(value), f"{var.name}_start")
        return self.normalize(collective_done(flying))

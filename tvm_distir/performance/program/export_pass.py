# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define ``ExportProgram``, the analysis pass that hands a lowered module to the simulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tvm import ir

from tvm_distir.support import UsageError
from tvm_distir.transforms import Rewrite, module_pass

from .exporter import export
from .program import Program


@module_pass("local")
def ExportProgram(output: str | Path | Callable[[Program], object]) -> Rewrite:
    """Export the module to the cost simulator, and leave it as it is.

    It stands wherever a ``tvm.transform.Pass`` may, as the last of a ``tvm.transform.Sequential``
    or between two passes over collectives.

    Parameters
    ----------
    output : str, Path or callable
        The file of the :class:`.Program` as JSON; in Python also a function that gets it, such as
        the ``append`` of a list.

    Returns
    -------
    Pass
        A module pass. It raises what :func:`.export` raises, and OSError for a file that cannot be
        written.

    Examples
    --------
    >>> mod = td.zoo.build("mlp", {"batch": 4, "layers": 1, "hidden": 8})
    >>> plan = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
    >>> programs = []
    >>> _ = td.performance.ExportProgram(programs.append)(td.distribute(mod, plan))
    >>> len(programs[0].functions["main"].ops)
    4
    """
    sink: object = output
    if not isinstance(sink, str | Path) and not callable(sink):
        problem = f"the output is of type {type(output).__name__}"
        remedy = "Give a path, or a function that gets the program."
        raise UsageError("DIST0152", problem, location="output", remedy=remedy)

    def run(mod: ir.IRModule) -> ir.IRModule:
        program = export(mod)
        if isinstance(output, str | Path):
            program.save(output)
        else:
            output(program)
        return mod

    return run

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Report the rule of Relax that a module breaks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tvm
from tvm import ir, relax

from tvm_distir.core.ir.types import relax_functions
from tvm_distir.support import LevelError

_ADDRESS = re.compile(r"Function 0x[0-9a-f]+")


def broken_rule(mod: ir.IRModule) -> tuple[str, str] | None:
    """Return a function that is not well-formed and what TVM says of it; None if there is none.

    The name is ``module`` where each function is well-formed by itself.
    """
    if relax.analysis.check_well_formed(mod):
        return None
    functions = [(str(gv.name_hint), fn) for gv, fn in relax_functions(mod)]
    for name, part in (*functions, ("module", mod)):
        try:
            relax.analysis.well_formed(part)
        except (ValueError, TypeError, tvm.error.InternalError) as error:
            text = next(line.strip() for line in str(error).splitlines() if line.strip())
            return name, _ADDRESS.sub("it", text).split(".  ")[0].rstrip(".")
    return None


def check_well_formed(mod: ir.IRModule) -> None:
    """Refuse a module that is not well-formed, its types included.

    Raises
    ------
    LevelError
        DIST0453 with the function and the rule that it breaks.
    """
    violation = broken_rule(mod)
    if violation is not None:
        raise LevelError(
            "DIST0453",
            f"it is not well-formed: {violation[1]}",
            location=violation[0],
            remedy="Run relax.transform.Normalize first where a type is missing; otherwise correct "
            "the pass or the script that built it, which relax.analysis.well_formed checks.",
        )


@contextmanager
def well_formed_first(mod: ir.IRModule) -> Iterator[None]:
    """Refuse a module that is not well-formed rather than what follows from it in the block.

    The time of TVM's check of types grows with the square of the bindings of a function. Types are
    therefore checked where the block fails, and all other rules before it.

    Raises
    ------
    LevelError
        DIST0453 with the function and the rule that it breaks.
    """
    if not relax.analysis.check_well_formed(mod, check_ty=False):
        check_well_formed(mod)
    try:
        yield
    except Exception:
        check_well_formed(mod)
        raise

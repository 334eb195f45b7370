# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Check that an argument of a public function is a module."""

from __future__ import annotations

from pathlib import Path

from tvm import ir

from tvm_distir.support import UsageError, shortened

_FIELDS = ("mod", "module")
"""Fields in which models and results hold their module."""


def check_module(mod: object, location: str) -> None:
    """Refuse an argument that is no module.

    Parameters
    ----------
    mod : object
        The argument.
    location : str
        The public function, as ``td.export``.

    Raises
    ------
    UsageError
        DIST0154, whose remedy names the field or the call that gives the module.
    """
    if isinstance(mod, ir.IRModule):
        return
    field = next((f for f in _FIELDS if isinstance(getattr(mod, f, None), ir.IRModule)), None)
    if field is not None:
        remedy = f"Give its module, the field .{field}."
    elif isinstance(mod, (str, Path)):
        remedy = f'Load it first: td.load_model("{mod}").mod.'
    else:
        remedy = "Give a module, such as td.load_model(MODEL).mod or the result of td.distribute."
    text = shortened(repr(mod)) if isinstance(mod, (str, Path, int, type(None))) else ""
    problem = f"the argument is {text or f'of type {type(mod).__name__}'}, and a module is required"
    raise UsageError("DIST0154", problem, location=location, remedy=remedy)

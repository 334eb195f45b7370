# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the formats of `convert` by the extension of the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_distir.support import UsageError

from .opt import script

if TYPE_CHECKING:
    from tvm import ir


@dataclass(frozen=True)
class ModuleFormat:
    """Format of a file that holds a module.

    Attributes
    ----------
    ending : str
        Of the file.
    what : str
        What it is.
    write : callable
        Gives the content from a module.
    level : str, optional
        The only level that it supports; None: any.
    """

    ending: str
    what: str
    write: Callable[[ir.IRModule], str | bytes]
    level: str | None = None


def _json(mod: ir.IRModule) -> str:
    import tvm

    return str(tvm.ir.save_json(mod)) + "\n"


def _program(mod: ir.IRModule) -> str:
    from tvm_distir.performance import export

    return export(mod).to_json() + "\n"


def _stablehlo(mod: ir.IRModule) -> str:
    from tvm_distir.models import to_stablehlo

    return to_stablehlo(mod)


def _plain(mod: ir.IRModule) -> str:
    from tvm_distir.models import to_stablehlo

    return to_stablehlo(mod, composites=False)


FORMATS = (
    ModuleFormat(".py", "TVMScript", script),
    ModuleFormat(".program.json", "program for `simulate`", _program, "local"),
    ModuleFormat(".json", "JSON of TVM", _json),
    ModuleFormat(".plain.mlir", "StableHLO without composites", _plain),
    ModuleFormat(".mlir", "StableHLO, with shardings or collectives", _stablehlo),
)
"""All formats; the first format with a matching extension is used."""


def format_of(path: str) -> ModuleFormat:
    """Return the format of a path.

    Raises
    ------
    UsageError
        DIST0152 for an unknown ending.
    """
    for module_format in FORMATS:
        if path.lower().endswith(module_format.ending):
            return module_format
    remedy = f"Use {', '.join(module_format.ending for module_format in FORMATS)}."
    raise UsageError("DIST0152", f"{path} has an unknown extension", location="OUT", remedy=remedy)

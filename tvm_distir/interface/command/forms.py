# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the formats of `convert` by the extension of the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_distir.support import UsageError

from .opt import script


@dataclass(frozen=True)
class ModuleForm:
    """A form of modules.

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
    write: Callable[[Any], str | bytes]
    level: str | None = None


def _json(mod: Any) -> str:
    import tvm

    return str(tvm.ir.save_json(mod)) + "\n"


def _program(mod: Any) -> str:
    from tvm_distir.performance import export

    return export(mod).to_json() + "\n"


def _stablehlo(mod: Any) -> str:
    from tvm_distir.models import to_stablehlo

    return to_stablehlo(mod)


def _plain(mod: Any) -> str:
    from tvm_distir.models import to_stablehlo

    return to_stablehlo(mod, composites=False)


def _shard(mod: Any) -> str:
    from tvm_distir.models import to_stablehlo

    return to_stablehlo(mod, "shard")


FORMS = (
    ModuleForm(".py", "TVMScript", script),
    ModuleForm(".program.json", "program for `simulate`", _program, "local"),
    ModuleForm(".json", "JSON of TVM", _json),
    ModuleForm(".shard.mlir", "StableHLO with the shard dialect of MLIR", _shard),
    ModuleForm(".plain.mlir", "StableHLO without composites", _plain),
    ModuleForm(".mlir", "StableHLO, with shardings or collectives", _stablehlo),
)
"""All formats; the first format with a matching extension is used."""


def form_of(path: str) -> ModuleForm:
    """Return the format of a path.

    Raises
    ------
    UsageError
        DIST0152 for an ending of no form.
    """
    for form in FORMS:
        if path.lower().endswith(form.ending):
            return form
    raise UsageError(
        "DIST0152",
        f"{path} has an unknown extension",
        place="OUT",
        remedy=f"Use {', '.join(form.ending for form in FORMS)}.",
    )

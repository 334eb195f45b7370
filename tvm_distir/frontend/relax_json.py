# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Modules as TVM's own JSON (``tvm.ir.save_json``), at any level."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tvm
from tvm import ir

from ..errors import ModelError
from ..ir.rewrite import bind_dims
from ..reading import read_text
from .spec import check_file


def read_relax(path: str | Path, dims: Mapping[str, int]) -> ir.IRModule:
    """Read a module.

    Raises
    ------
    ModelError
        DIST0301 no file, DIST0303 one that holds no module, DIST0313 a size of no dim.
    """
    check_file(path)
    remedy = "Give the JSON of a Relax module, as `tvm-distir convert MODEL out.json` writes it."

    def refuse(place: str, what: str, remedy: str) -> ModelError:
        return ModelError("DIST0303", what, place=place, remedy=remedy)

    text = read_text(path, refuse)
    try:
        found = tvm.ir.load_json(text)
    except (
        *(json.JSONDecodeError, AttributeError, LookupError, RecursionError),
        *(RuntimeError, TypeError, ValueError),
    ) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        what = f"it holds no module of TVM: {lines[-1] if lines else type(error).__name__}"
        raise refuse(str(path), what, remedy) from error
    if not isinstance(found, ir.IRModule):
        raise refuse(str(path), f"it holds a {type(found).__name__}, not a module", remedy)
    return bind_dims(found, dims)

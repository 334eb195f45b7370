# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The file that a MODEL string names, found and looked at without TVM."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelError
from ..reading import file_fault

ZOO = "zoo:"
FILES = (".onnx", ".py")
"""How the names of model files end."""


def model_file(spec: str) -> str | None:
    """Path of the file that a MODEL string names; None for a model of the zoo.

    Examples
    --------
    >>> model_file("m.onnx"), model_file("m.py::Name"), model_file("zoo:gpt")
    ('m.onnx', 'm.py', None)
    """
    if spec.startswith(ZOO):
        return None
    return spec.partition("::")[0]


def check_file(path: str | Path) -> None:
    """Refuse (DIST0301) a path at which no file is."""
    fault = file_fault(path)
    if fault is not None:
        raise ModelError(
            "DIST0301",
            f"cannot read the file: {fault}",
            place=str(path),
            remedy="Check the path.",
        )


def check_model(spec: str) -> None:
    """Refuse (DIST0301) a MODEL string that names a file of a known kind which is not there."""
    path = model_file(spec)
    if path is not None and Path(path).suffix.lower() in FILES:
        check_file(path)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The file that a MODEL string names, found and looked at without TVM."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ..errors import ModelError
from ..reading import file_fault

ZOO = "zoo:"
FILES = (".onnx", ".pt2", ".py")
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


def check_torch(place: str) -> None:
    """Refuse (DIST0304) to go on where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ModelError(
            "DIST0304",
            "programs of torch.export are read with torch, which is not installed",
            place=place,
            remedy='Install the extra: pip install "tvm_distir[torch]".',
        )


def check_model(spec: str) -> None:
    """Refuse a MODEL string before TVM is imported.

    Raises
    ------
    ModelError
        DIST0301 it names a file of a known kind which is not there, DIST0304 an archive of
        PyTorch where torch is not installed.
    """
    path = model_file(spec)
    if path is None or Path(path).suffix.lower() not in FILES:
        return
    check_file(path)
    if Path(path).suffix.lower() == ".pt2":
        check_torch(spec)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""MODEL strings: ``file.onnx``, ``file.py``, ``zoo:NAME?key=value,...``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tvm import ir

from ..errors import ModelError
from . import zoo
from .spec import ZOO, model_file
from .tvmscript import from_tvmscript

if TYPE_CHECKING:
    import onnx

Weights = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Model:
    """A model that was read.

    Attributes
    ----------
    mod : IRModule
        Its module, at the global level (a TVMScript file may be at any).
    name : str
        Short name: the file's stem, or ``gpt``, ``llama``.
    kind : str
        ``onnx``, ``tvmscript`` or ``zoo``.
    read_weights : callable
        Reads the weights that the file has values of, by parameter name; none for other kinds.
    """

    mod: ir.IRModule
    name: str
    kind: str
    read_weights: Callable[[], Weights] = field(default=dict)


def load_model(spec: str, batch: int | None = None, dims: Mapping[str, int] | None = None) -> Model:
    """Read the model that a MODEL string names.

    Parameters
    ----------
    spec : str
        ``m.onnx``, ``m.py`` or ``m.py::Name``, ``zoo:NAME`` or ``zoo:NAME?key=value,...``.
    batch : int, optional
        New batch, for ONNX files and the zoo.
    dims : mapping of str to int, optional
        Sizes of symbolic dims, for files.

    Raises
    ------
    ModelError
        DIST0302 a string of no known kind, DIST0304 a kind whose extra is missing, DIST0313 a
        size for what has no such dim, DIST0314 a TVMScript module with a batch; and what the
        frontends raise.
    """
    path = model_file(spec)
    if path is None:
        name, keys = _split_keys(spec.removeprefix(ZOO), spec)
        if batch is not None:
            keys["batch"] = str(batch)
        for dim, size in (dims or {}).items():
            raise ModelError(
                "DIST0313",
                f'models of the zoo have no dim "{dim}" whose size is open',
                place=spec,
                remedy=f"Give sizes as keys: {ZOO}{name}?{dim}={size}; see `td.zoo.{name}`.",
            )
        return Model(zoo.build(name, keys), name, "zoo")
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        mod = from_onnx(path, batch=batch, dims=dims)
        return Model(mod, Path(path).stem, "onnx", lambda: load_weights(path, filled=False))
    if suffix == ".py":
        if batch is not None:
            raise ModelError(
                "DIST0314",
                "the batch of a TVMScript module is written in it",
                place=spec,
                remedy="Leave --batch out; a symbolic dim gets its size by --dim NAME=N.",
            )
        return Model(from_tvmscript(spec, dims=dims), Path(path).stem, "tvmscript")
    if suffix == ".pt2":
        raise ModelError(
            "DIST0304",
            "PyTorch archives are not read yet",
            place=spec,
            remedy="Export the model to ONNX.",
        )
    raise ModelError(
        "DIST0302",
        "the model is of no known kind",
        place=spec,
        remedy=f"Give file.onnx, file.py or zoo:NAME with NAME one of {', '.join(zoo.NAMES)}.",
    )


def from_onnx(
    source: str | Path | onnx.ModelProto,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
) -> ir.IRModule:
    """Import an ONNX model; its weights become parameters of ``main`` and take no memory.

    Parameters
    ----------
    source : str, Path or ModelProto
        The model; external weight files are not opened.
    batch : int, optional
        New size of dim 0 of every data input; constants that pin the old one are rewritten.
    dims : mapping of str to int, optional
        Sizes for the symbolic dims of the inputs, by name; ``INPUT.INDEX`` for one without.

    Returns
    -------
    IRModule
        ``main(*data, *weights)``; its attribute ``num_input`` counts the data, and
        ``dist.param_names`` holds the file's names. `load_weights` reads the values.

    Raises
    ------
    ModelError
        DIST0301, DIST0303 the file; DIST0310 to DIST0314, DIST0316, DIST0317 the model.
    """
    from .onnx import from_onnx as read

    return read(source, batch=batch, dims=dims)


def load_weights(
    source: ir.IRModule | onnx.ModelProto | str | Path, *, filled: bool = True
) -> Weights:
    """Read the weights of an ONNX model, by the names of ``main``'s parameters.

    Parameters
    ----------
    source : IRModule, ModelProto, str or Path
        A module that `from_onnx` made of a file, the model, or its path.
    filled : bool
        Whether to give weights that the file only describes (ConstantOfShape nodes) too.

    Raises
    ------
    ModelError
        DIST0315 the weights cannot be read; DIST0301, DIST0303 the file cannot.
    """
    from .onnx import load_weights as read

    return read(source, filled=filled)


def _split_keys(text: str, spec: str) -> tuple[str, dict[str, str]]:
    """``name?key=value,...`` apart."""
    name, mark, rest = text.partition("?")
    keys: dict[str, str] = {}
    for item in rest.split(",") if mark else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key or not equals or not value or key in keys:
            what = f'key "{key}" stands twice' if key in keys else f'"{item}" is not key=value'
            raise ModelError("DIST0302", what, place=spec, remedy="Write NAME?key=value,key=value.")
        keys[key] = value
    return name, keys

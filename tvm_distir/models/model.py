# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Load models from MODEL strings: files of known kinds, ``zoo:NAME?key=value``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tvm import ir

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.models.common.published import HUB, zoo_spec
from tvm_distir.models.common.spec import (
    CONFIG,
    RELAX,
    STABLEHLO,
    ZOO,
    batch_fault,
    is_config,
    model_file,
    split_keys,
)
from tvm_distir.support import ModelError, UsageError, read_json

from . import zoo
from .frontends import Weights, from_exported_program, from_onnx, load_weights
from .hlo import read_stablehlo
from .relax_json import read_relax
from .stored_weights import StoredWeights, no_config, stored_weights
from .tvmscript import from_tvmscript
from .zoo.cached_config import CacheConfig
from .zoo.decoder_config import DecoderConfig


def _no_types() -> StoredWeights | None:
    return None


@dataclass(frozen=True)
class Model:
    """Model that was read.

    Attributes
    ----------
    mod : IRModule
        The module, at the global level (a TVMScript or JSON file may be at any level).
    name : str
        Short name: the file's stem, or ``gpt``, ``llama``.
    kind : str
        ``onnx``, ``torch``, ``stablehlo``, ``tvmscript``, ``relax``, ``huggingface`` or ``zoo``.
    read_weights : callable
        Reads the weights that the file has values of, by parameter name; none for other kinds.
    weight_types : callable
        Returns the types in which the checkpoint stores weights; None: those of the module.
    """

    mod: ir.IRModule
    name: str
    kind: str
    read_weights: Callable[[], Weights] = field(default=dict)
    weight_types: Callable[[], StoredWeights | None] = _no_types

    @property
    def is_text(self) -> bool:
        """Return whether the model is a module in text, whose batch is fixed."""
        return self.kind in ("relax", "stablehlo", "tvmscript")


@gc_paused()
def load_model(
    spec: str | Path, batch: int | None = None, dims: Mapping[str, int] | None = None
) -> Model:
    """Read the model of a MODEL string.

    Parameters
    ----------
    spec : str or Path
        ``m.onnx``, ``m.pt2``, ``m.mlir`` or ``m.mlir?key=value,...``, ``m.py`` or
        ``m.py::Name``, ``m.json``, ``zoo:NAME`` or ``zoo:NAME?key=value,...``; a ``config.json``
        of the Hugging Face hub or its folder, also with keys; ``hf:NAME`` of a published model.
    batch : int, optional
        New batch, for ONNX files, archives of PyTorch, and the zoo.
    dims : mapping of str to int, optional
        Sizes of symbolic dims, for files.

    Raises
    ------
    UsageError
        DIST0154 what is neither a text nor a path.
    ModelError
        DIST0302 a string of no known kind, DIST0304 a kind whose extra is missing, DIST0313 a
        size for what has no such dim, DIST0314 a module in text with a batch; and what the
        frontends raise.

    Examples
    --------
    >>> model = td.load_model("zoo:mlp?size=tiny")
    >>> model.kind, model.mod["main"].ret_ty
    ('zoo', R.Tensor((8, 32), dtype="float32"))
    """
    if not isinstance(spec, (str, Path)):
        raise UsageError(
            "DIST0154",
            f"the argument is of type {type(spec).__name__}, and a module or the name of a model "
            "is required",
            location="model",
            remedy="Give an IRModule, the path of a file, hf:NAME or zoo:NAME?key=value,...",
        )
    types = partial(stored_weights, str(spec))
    spec = zoo_spec(str(spec))
    path = model_file(spec)
    if path is None:
        name, keys = split_keys(spec.removeprefix(ZOO), spec)
        if batch is not None:
            keys["batch"] = str(batch)
        check_zoo_dims(spec, name, dims or {})
        return Model(zoo.build(name, keys), name, "zoo", weight_types=types)
    if is_config(path):
        return replace(_from_config(path, spec, batch), weight_types=types)
    suffix = Path(path).suffix.lower()
    if suffix == ".onnx":
        mod = from_onnx(path, batch=batch, dims=dims)
        return Model(mod, Path(path).stem, "onnx", lambda: load_weights(path, filled=False))
    if suffix in STABLEHLO:
        return Model(read_stablehlo(path, spec, batch, dims or {}), Path(path).stem, "stablehlo")
    if suffix == ".py":
        if batch is not None:
            raise batch_fault("TVMScript", spec, "a symbolic dim gets its size by --dim NAME=N")
        return Model(from_tvmscript(spec, dims=dims), Path(path).stem, "tvmscript")
    if suffix == RELAX:
        if batch is not None:
            raise batch_fault("Relax", spec, "a symbolic dim gets its size by --dim NAME=N")
        return Model(read_relax(path, dims or {}), Path(path).stem, "relax")
    if suffix == ".pt2":
        mod = from_exported_program(path, batch=batch, dims=dims)
        return Model(mod, Path(path).stem, "torch", lambda: load_weights(path))
    remedy = (
        f"Give file.onnx, .pt2, .mlir, .jax, .py, .json, config.json, {HUB}NAME, or "
        f"{ZOO}NAME with NAME one of {', '.join(zoo.NAMES)}."
    )
    raise ModelError("DIST0302", "the kind of the model is unknown", location=spec, remedy=remedy)


def check_zoo_dims(spec: str, name: str, dims: Mapping[str, int]) -> None:
    """Refuse sizes of symbolic dims of a model of the zoo, which has none (ModelError DIST0313)."""
    for dim, size in dims.items():
        problem = f'models of the zoo have no symbolic dim "{dim}"'
        remedy = f"Give sizes as keys: {ZOO}{name}?{dim}={size}; see `td.zoo.{name}`."
        raise ModelError("DIST0313", problem, location=spec, remedy=remedy)


def serving_step(spec: str) -> tuple[DecoderConfig, CacheConfig]:
    """Return the configurations of a serving step, from a MODEL string with ``entry=serve``.

    Raises
    ------
    ModelError
        DIST0331 for a model without a serving step; and what reading a model raises.
    """
    spec = zoo_spec(spec)
    path = model_file(spec)
    if path is not None and not is_config(path):
        raise _no_step(spec)
    name, keys = split_keys(spec.removeprefix(ZOO), spec)
    rest, caches = zoo.split_serve_keys(spec, keys)
    if caches is None or (path is None and name in zoo.WITHOUT_SERVING):
        raise _no_step(spec)
    if path is None:
        return zoo.serving_config(spec, zoo.served_config(name, rest), caches), caches
    from tvm_distir.models.huggingface.config_reader import read_config

    file = Path(path, CONFIG) if Path(path).is_dir() else Path(path)
    config = read_config(read_json(file, no_config), str(file), rest)
    if not isinstance(config, DecoderConfig):
        raise _no_step(spec)
    return config, caches


def _no_step(spec: str) -> ModelError:
    remedy = "Give a decoder of the zoo, or a config.json."
    return ModelError("DIST0331", "the model has no serving step", location=spec, remedy=remedy)


def _from_config(path: str, spec: str, batch: int | None) -> Model:
    """Build the model that a ``config.json`` describes; weights are read from its folder.

    Without weights, its experts have the slots of the zoo's: those of a balanced load.
    """
    from tvm_distir.models.huggingface.checkpoint import holds_checkpoint, read_checkpoint
    from tvm_distir.models.huggingface.class_export import export_class, needs_class
    from tvm_distir.models.huggingface.config_reader import read_config

    file = Path(path, CONFIG) if Path(path).is_dir() else Path(path)
    _, keys = split_keys(spec, spec)
    if batch is not None:
        keys["batch"] = str(batch)
    keys, caches = zoo.split_serve_keys(spec, keys)
    data, folder = read_json(file, no_config), file.resolve().parent
    if caches is None and needs_class(data):
        return Model(export_class(data, str(file), keys), folder.name, "torch")
    config = read_config(data, str(file), keys)
    has_weights = holds_checkpoint(folder)
    if not has_weights and caches is None and isinstance(config, DecoderConfig):
        if config.experts and "capacity_factor" not in keys:
            config = replace(config, capacity_factor=DecoderConfig.capacity_factor)
    mod = zoo.build_config(config, caches)
    if not has_weights:
        return Model(mod, folder.name, "huggingface")
    return Model(mod, folder.name, "huggingface", lambda: read_checkpoint(folder, config))


def model_keys(spec: str) -> tuple[str, dict[str, str]] | None:
    """Return the name and keys of a zoo MODEL, or None for a file (ModelError DIST0302)."""
    spec = zoo_spec(spec)
    return None if model_file(spec) is not None else split_keys(spec.removeprefix(ZOO), spec)

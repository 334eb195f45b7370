# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Build a class of `transformers`, with inputs and outputs that can be exported."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_SAMPLES = 320
"""Samples of sound in an item of a sequence."""


def build_class(config: object, architectures: Sequence[str]) -> torch.nn.Module:
    """Return the model of the first class that is known, else that of a configuration.

    It returns no caches, which would be results of the program.
    """
    for part in (config, *_parts(config)):
        if hasattr(part, "use_cache"):
            setattr(part, "use_cache", False)
    transformers: Any = importlib.import_module("transformers")
    dtype = getattr(torch, str(getattr(config, "dtype", None) or "float32").rpartition(".")[2])
    kind = next((k for k in (getattr(transformers, n, None) for n in architectures) if k), None)
    if kind is None:
        has_head = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        kind = transformers.AutoModelForCausalLM if has_head else transformers.AutoModel
    build = getattr(kind, "from_config", None) or kind._from_config
    model: torch.nn.Module = build(config, dtype=dtype)
    return model.eval()


def with_tensors(model: torch.nn.Module) -> torch.nn.Module:
    """Return a model whose ``forward`` takes inputs by name and returns its tensors alone."""
    forward = model.forward
    options = _without_caches(model)

    def tensors(**inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = pytree.tree_leaves(forward(**inputs, **options))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    setattr(model, "forward", tensors)
    return model


def _arguments(model: torch.nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(model.forward).parameters


def _without_caches(model: torch.nn.Module) -> dict[str, bool]:
    """Return the option of a model that returns no caches, where it has one."""
    return {"use_cache": False} if "use_cache" in _arguments(model) else {}


def exported(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    """Return the program of a model on the meta device.

    Numbers that its code makes tensors of keep their values on the device of the process. Code
    that makes larger tensors without saying where is exported with all of them on the meta device.
    """
    try:
        return torch.export.export(model, (), inputs, strict=False)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):  # of mixed devices, by op
        with torch.device("meta"):
            return torch.export.export(model, (), inputs, strict=False)


def example_inputs(model: torch.nn.Module, batch: int, seq: int) -> dict[str, torch.Tensor]:
    """Return the inputs of a model by name, as zeros.

    A model of several kinds of data gets its tokens alone, unless it compares texts with images;
    an encoder beside a decoder gets the inputs of both.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    batch : int
    seq : int
        Tokens of a sample, or frames of sound; images have the size that the configuration states.
    """
    arguments = _arguments(model)
    main = "input_ids" if "input_ids" in arguments else str(model.main_input_name)
    inputs = [main]
    if "logit_scale" in dict(model.named_parameters()) and "pixel_values" in arguments:
        inputs.append("pixel_values")
    if "decoder_input_ids" in arguments and getattr(model.config, "is_encoder_decoder", False):
        inputs.append("decoder_input_ids")
    inputs += [
        name
        for name, argument in arguments.items()
        if argument.default is argument.empty and argument.kind is argument.POSITIONAL_OR_KEYWORD
        if name not in inputs
    ]
    names = list(dict.fromkeys(inputs))
    variants = [_variants(model.config, name, batch, seq) for name in names]
    choices = [dict(zip(names, tensors, strict=True)) for tensors in itertools.product(*variants)]
    if len(choices) == 1:
        return choices[0]
    return next((choice for choice in choices if _runs(model, choice)), choices[0])


def _runs(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> bool:
    """Return whether a model accepts inputs of these shapes; on the meta device it is quick."""
    try:
        with torch.no_grad():
            model(**inputs, **_without_caches(model))
    except Exception:  # of the model's own code, which refuses shapes in any way
        return False
    return True


def _variants(config: object, name: str, batch: int, seq: int) -> list[torch.Tensor]:
    """Return an input as zeros, in the shapes that models of sound may expect.

    Sound has a dim of channels or none, and features of several frames may be stacked.
    """
    plain = _zeros(config, name, batch, seq)
    if name in ("input_values", "audio_values"):
        return [plain, plain[:, None] if plain.ndim == 2 else plain[:, 0]]
    if name in ("input_features", "spectrogram"):
        return [plain, *(plain.repeat(1, 1, n) for n in (2, 4)), plain.transpose(1, 2)]
    return [plain]


def _zeros(config: object, name: str, batch: int, seq: int) -> torch.Tensor:
    if name.startswith("pixel_values"):
        channels = _stated(config, "num_channels", "in_channels") or 3
        size = next(_values(config, "image_size"), 224)
        sides: list[Any] = [*size][-2:] if isinstance(size, Sequence) else [size, size]
        frames = [_stated(config, "num_frames") or 8] if name.endswith("videos") else []
        return torch.zeros(batch, *frames, channels, *sides)
    if name in ("input_values", "audio_values"):
        is_codec = "codec" in type(config).__name__.lower()
        tracks = _stated(config, "audio_channels") or int(is_codec)
        return torch.zeros(batch, *([tracks] if tracks else []), seq * _SAMPLES)
    if name in ("input_features", "spectrogram"):
        return torch.zeros(batch, seq, _stated(config, "num_mel_bins", "feature_size") or 80)
    if name == "inputs_embeds":
        return torch.zeros(batch, seq, _stated(config, "hidden_size") or 1)
    return torch.zeros(batch, seq, dtype=torch.int64)


def _stated(config: object, *keys: str) -> int | None:
    """Return the first number that a configuration or a part of it states."""
    return next((value for value in _values(config, *keys) if isinstance(value, int)), None)


def _values(config: object, *keys: str) -> Iterator[object]:
    for part in (config, *_parts(config)):
        yield from (getattr(part, key) for key in keys if getattr(part, key, None) is not None)


def _parts(config: object) -> Iterator[object]:
    for value in vars(config).values():
        if hasattr(value, "model_type"):
            yield value
            yield from _parts(value)

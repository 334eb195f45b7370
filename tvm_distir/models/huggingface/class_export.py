# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export the class of `transformers` that a ``config.json`` of an unknown family names.

The class is built on the meta device, so that no weight takes memory, and its program is imported
as others of ``torch.export`` are. Modules are cached by the content of the configuration.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from tvm import ir

from tvm_distir.models.common.import_cache import cached_content
from tvm_distir.support import ModelError, nearest, parse_int

from .config_reader import MODEL_TYPES
from .quantized_config import Keys

_MISSING = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
SIZES = {"batch": "", "seq": "", "layers": "num_hidden_layers", "dtype": "dtype"}
"""Keys of a MODEL string, and those of the configuration that they set."""
BATCH, SEQ = 16, 4096
"""Samples, and tokens of a sample, unless they are stated; models may have fewer positions."""


def export_class(data: Keys, location: str, keys: Keys) -> ir.IRModule:
    """Return the module from tokens to logits of the class that a configuration names.

    Parameters
    ----------
    data : mapping
        The content of a ``config.json``.
    location : str
    keys : mapping
        Of :data:`SIZES`.

    Raises
    ------
    ModelError
        DIST0334 for a type that `transformers` does not know either, a class that does not map
        tokens to logits, and another key; and what importing a program raises.
    """
    for key in keys:
        if key not in SIZES:
            remedy = f"Known of {data['model_type']}: {', '.join(SIZES)}."
            raise _fault(f'there is no key "{key}"', location, remedy)
        if key != "dtype" and parse_int(str(keys[key]), 1) is None:
            problem = f'{key} is "{keys[key]}", and a positive number is needed'
            raise _fault(problem, location, "Correct it.")
    content = json.dumps([data, dict(keys)], sort_keys=True, default=str)
    return cached_content(content, lambda: _exported(data, location, keys))


def needs_class(data: object) -> bool:
    """Return whether a configuration is of a family of its class alone, which is installed."""
    if not isinstance(data, Mapping) or data.get("model_type") in (None, *MODEL_TYPES):
        return False
    return not _MISSING


def _fault(problem: str, location: str, remedy: str) -> ModelError:
    return ModelError("DIST0334", problem, location=location, remedy=remedy)


def _decoded(value: Any) -> Any:
    """Return a value of a ``config.json``; transformers writes ``{"__float__": "Infinity"}``."""
    if isinstance(value, Mapping):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def _exported(data: Keys, location: str, keys: Keys) -> ir.IRModule:
    import torch

    from tvm_distir.models.torch.importer import from_exported_program

    from .class_inputs import build_class, example_inputs, exported, with_tensors

    transformers: Any = importlib.import_module("transformers")
    changes = {SIZES[key]: int(value) if key == "layers" else value
               for key, value in keys.items() if SIZES[key]}  # fmt: skip
    rest = {key: _decoded(value) for key, value in data.items() if key != "model_type"}
    try:
        known: Any = transformers.AutoConfig.for_model(data["model_type"], **{**rest, **changes})
        positions = int(getattr(known.get_text_config(), "max_position_embeddings", SEQ) or SEQ)
        batch, seq = int(keys.get("batch", BATCH)), int(keys.get("seq", min(SEQ, positions)))
        with torch.device("meta"):
            model = build_class(known, data.get("architectures") or ())
            inputs = example_inputs(model, batch, seq)
        program = exported(with_tensors(model), inputs)
    except Exception as error:  # whatever the code of a class raises
        first = " ".join(str(error).split())[:200]
        problem = f"transformers {transformers.__version__} cannot export the class: {first}"
        remedy = (
            f"{nearest(data['model_type'], MODEL_TYPES)} Or export it yourself, as a .pt2 file."
        )
        raise _fault(problem, location, remedy) from error
    return from_exported_program(program)

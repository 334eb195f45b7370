# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rename weights of BERT, ViT, T5 and Whisper to those of the zoo's models.

Checkpoints have the names of the version of ``transformers`` that wrote them; ViT has two sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_distir.models.zoo.configs import Config
from tvm_distir.models.zoo.t5_model import T5Config
from tvm_distir.support import ModelError, shipped_data

Array = npt.NDArray[Any]

_TABLES: Mapping[str, Mapping[str, str | None]] = shipped_data(__file__, "encoder_weights.json")
"""By configuration: patterns of names of ``transformers``, and our names; None for a tensor that
another one is, or that nothing reads. ``{}`` is a number, ``*`` a word, ``**`` any text: the name
has them in the same order."""
_WILD = re.compile(r"(\{\}|\*\*|\*)")
_KINDS = {"{}": r"(\d+)", "*": r"(\w+)", "**": "(.*)"}


def renamed_weights(config: Config, state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights of a model with an encoder by the names of its parameters.

    Raises
    ------
    ModelError
        DIST0335 for a tensor that belongs to no weight of the model.
    """
    out: dict[str, Array] = {}
    for name, value in state.items():
        ours = _renamed(name, _TABLES[type(config).__name__])
        if ours == "lm_head.weight" and isinstance(config, T5Config) and config.tied:
            continue
        if ours is not None:
            out[ours] = np.asarray(value)
    return out


def _renamed(name: str, table: Mapping[str, str | None]) -> str | None:
    for theirs, ours in table.items():
        parts = _WILD.split(theirs)
        match = re.fullmatch("".join(_KINDS.get(part) or re.escape(part) for part in parts), name)
        if match is not None:
            words = iter(match.groups())
            return None if ours is None else _WILD.sub(lambda _: next(words), ours)
    problem = "the tensor belongs to no weight of the model"
    remedy = "Give the weights of the model that config.json describes."
    raise ModelError("DIST0335", problem, location=name, remedy=remedy)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Say in which types the checkpoint of a MODEL string stores its weights."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tvm_distir.models.common.published import (
    ALIASES,
    HUB,
    is_published,
    published_name,
    published_names,
    zoo_spec,
)
from tvm_distir.models.common.spec import CONFIG, ZOO, is_config, model_file, split_keys
from tvm_distir.models.huggingface.config_keys import ConfigKeys
from tvm_distir.models.huggingface.config_reader import of_decoder, read_config
from tvm_distir.models.huggingface.family_reader import DECODERS
from tvm_distir.models.huggingface.quantized_config import (
    KEYS,
    Keys,
    QuantizedWeights,
    quantized_weights,
)
from tvm_distir.models.zoo.decoder_config import DecoderConfig
from tvm_distir.models.zoo.decoder_model import TransformerLayer
from tvm_distir.support import ModelError, read_json, shipped_data

from . import zoo

MODELOPT = "hf_quant_config.json"
"""The file in which ModelOpt describes weights beside a ``config.json`` that does not."""
_PUBLISHED: Keys = shipped_data(__file__, "common/published_weights.json")
"""The ``quantization_config`` of each published name that has one, as its ``config.json`` has it;
or the name that has the same one."""
_HALF = ("float16", "bfloat16")
_JOINT = {("q_proj", "k_proj", "v_proj"): "qkv_proj", ("gate_proj", "up_proj"): "gate_up_proj"}
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


@dataclass(frozen=True)
class StoredWeights:
    """Types in which a checkpoint stores the weights of its products.

    Attributes
    ----------
    text : str
        The kind of weights with its options, as the names of kernel profiles have them.
    words : str
        The type in words.
    source : str
        What states it.
    dtype : str
        The dtype of the other weights and of activations.
    """

    text: str
    words: str
    source: str
    dtype: str


def stored_weights(spec: str) -> StoredWeights | None:
    """Return the types of the weights of a MODEL string; None where they are those of the model.

    Raises
    ------
    ModelError
        DIST0334 for quantized weights whose type cannot be told, and beside a dtype of 32 bits;
        and what reading a configuration raises.
    """
    if is_published(spec):
        name = published_name(spec)
        data = _PUBLISHED.get(name)
        data = _PUBLISHED[data] if isinstance(data, str) else data
        if data is None:
            return None
        family, keys = split_keys(zoo_spec(spec).removeprefix(ZOO), spec)
        config = zoo.served_config(family, zoo.split_serve_keys(spec, keys)[0])
        return _stored(ConfigKeys({KEYS[0]: data}, spec), config, f"{name} is published so")
    path = model_file(spec)
    if path is None or not is_config(path):
        return None
    file = Path(path, CONFIG) if Path(path).is_dir() else Path(path)
    content = read_json(file, no_config)
    other = file.parent / MODELOPT
    if file.name == CONFIG and other.is_file() and not any(content.get(key) for key in KEYS):
        stated = {"quant_method": "modelopt", **read_json(other, no_config)}
        content, source = {**content, KEYS[0]: stated}, other
    else:
        source = file
    reading = ConfigKeys(of_decoder(content), str(source))
    if not any(reading.data.get(key) for key in KEYS):
        return None
    if reading.data.get("model_type") not in DECODERS:
        raise reading.fault(
            f"quantized weights of {reading.data.get('model_type')} are not known, but of decoders",
            f"Use --quantize, such as none or fp8. Known: {', '.join(DECODERS)}.",
        )
    keys = zoo.split_serve_keys(spec, split_keys(spec, spec)[1])[0]
    decoder = read_config(content, str(file), keys)
    assert isinstance(decoder, DecoderConfig)
    return _stored(reading, decoder, f"stated by {source.name}")


def checkpoint_name(spec: str) -> str:
    """Return the name on the hub of the checkpoint of a MODEL string, or its folder; else empty.

    A name with its publisher is taken as written, as other weights of the same sizes have names of
    their own; one without is that of a published model. Keys change the model.
    """
    name, keys, _ = spec.removeprefix(HUB).partition("?")
    if keys or not is_published(spec):
        path = None if keys else model_file(spec)
        if path is None or not is_config(path):
            return ""
        return str(Path(path) if Path(path).is_dir() else Path(path).parent)
    lower = name.lower()
    known = "" if lower in ALIASES else published_names().get(lower, "")
    return known or (name if "/" in name else "")


def model_positions(spec: str) -> int:
    """Return the positions that the ``config.json`` of a decoder states; 0 without one."""
    path = model_file(spec)
    if path is None:
        return 0
    file = Path(path, CONFIG) if Path(path).is_dir() else Path(path)
    stated = of_decoder(read_json(file, no_config)).get("max_position_embeddings")
    return int(stated or 0)


def no_config(location: str, problem: str, remedy: str) -> ModelError:
    """Make the error of a configuration that is not JSON."""
    return ModelError("DIST0334", problem, location=location, remedy=remedy)


def _stored(reading: ConfigKeys, config: DecoderConfig, source: str) -> StoredWeights | None:
    """Return the types of weights of a configuration of the zoo."""
    weights = quantized_weights(reading)
    if weights is None:
        return None
    if config.dtype not in _HALF:
        raise reading.fault(
            f"weights are quantized ({weights.words}), and others are {config.dtype}",
            "Add ?dtype=bfloat16 to the model, or use --quantize none.",
        )
    options = [weights.kind]
    options += [] if weights.bits is None else [f"bits={weights.bits:.9g}"]
    options += [f"dtype={weights.dtype}"] if weights.dtype else []
    others = tuple(_others(weights, config))
    options += [f"others={'|'.join(others)}"]
    words = weights.words
    if any("@" in other for other in others):
        words += ", means over layers that differ"
    return StoredWeights(",".join(options), words, source, config.dtype)


def _others(weights: QuantizedWeights, config: DecoderConfig) -> Iterator[str]:
    """Yield the patterns of weights that are not quantized, with the share of layers if not in all.

    Layers share functions of a program, so that a weight has the mean of its bits in all layers.
    """
    if weights.keeps_head or _is_skipped("lm_head", weights):
        yield "lm_head*"
    yield from ("*router*", "embed_tokens*")
    if not (weights.skipped or weights.targets):
        return
    counts: dict[str, list[int]] = {}
    for number in range(config.layers):
        for name in _products(config, config.has_experts(number)):
            skipped = any(_is_skipped(f"model.layers.{number}.{other}", weights)
                          for other in _names(name, config))  # fmt: skip
            counts.setdefault(name, []).append(skipped)
    for block, names in itertools.groupby(counts, lambda name: name.split(".")[0]):
        tails = list(names)
        if all(all(counts[tail]) for tail in tails):
            yield f"*{block}.*"
            continue
        for tail in tails:
            share = sum(counts[tail]) / len(counts[tail])
            pattern = f"*{tail}*" if tail.endswith(".weight") else f"*{tail}"
            if share == 1:
                yield pattern
            elif share:
                yield f"{pattern}@{share:.9g}"


def _is_skipped(name: str, weights: QuantizedWeights) -> bool:
    """Return whether a module is not quantized."""
    if weights.targets and not any(re.match(text + "$", name) for text in weights.targets):
        return True
    return any(re.fullmatch(pattern, name) for pattern in weights.skipped)


def _products(config: DecoderConfig, experts: bool) -> list[str]:
    """Return the names of the weights of products in a layer."""
    names = [name for name, _ in TransformerLayer(config, experts).named_parameters()]
    return [name for name in names if "_proj" in name and not name.endswith(".bias")]


def _names(name: str, config: DecoderConfig) -> Iterator[str]:
    """Yield the names that modules of a layer may have in a checkpoint."""
    tail = name.removesuffix(".weight")
    yield tail
    for parts, joint in _JOINT.items():
        if tail.endswith(parts):
            yield f"{tail.rpartition('.')[0]}.{joint}"
    if tail.startswith("mlp.shared_experts."):
        yield tail.replace("shared_experts", "shared_expert")
    if name == tail and tail.startswith("mlp."):  # experts, which are stacked
        part = tail.removeprefix("mlp.")
        for number in (0, config.experts - 1):
            yield f"mlp.experts.{number}.{part}"
            yield f"block_sparse_moe.experts.{number}.{_MIXTRAL[part]}"

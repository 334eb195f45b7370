# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Choose the type of the weights of a model, as the kernel profile that reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tvm_distir.hardware import System
from tvm_distir.models import Model, StoredWeights, stored_weights
from tvm_distir.performance import (
    KINDS,
    WEIGHTS,
    Profile,
    check_products,
    multiplies,
    weight_quantization,
)
from tvm_distir.support import check_choice

PLAIN = "none"
"""The type of weights that are not quantized."""


def with_weights(system: System, weights: str | None, model: object = None) -> System:
    """Return a system whose kernel profile reads weights of a type.

    Parameters
    ----------
    system : System
    weights : str or None
        ``none``, a kind of weights, such as ``fp8``, ``nvfp4``, ``int4``; None or empty: those of
        the checkpoint of the model, unless the profile of the system quantizes already.
    model : Model, str, Path or other, optional
        The model, or its MODEL string.

    Raises
    ------
    UsageError
        DIST0152 for an unknown type.
    ModelError
        DIST0334 for a checkpoint whose types cannot be told.
    """
    if weights:
        text = _stated(weights)
    else:
        stored = None if quantizes(system.kernels) else types_of(model)
        if stored is None:
            return system
        text = stored.text
    base = system.kernels.partition(WEIGHTS)[0]
    if text == PLAIN:
        return replace(system, kernels=base)
    return replace(system, kernels=f"{base}{WEIGHTS}{_computable(text, system)}")


def equal_devices(system: System | str, purpose: str, weights: str | None, model: object) -> System:
    """Return a system of equal devices, whose products have peaks; as :func:`with_weights`."""
    known = with_weights(System.required(system, purpose), weights, model)
    check_products(Profile.resolve(known.kernels), known)
    return known


def drafted(system: System, model: str, draft: str) -> System:
    """Return the system of a draft model, whose weights have the types of its own checkpoint.

    Types that were stated for the model hold for the draft model too.
    """
    plain = with_weights(system, PLAIN)
    return with_weights(plain, "", draft) if system == with_weights(plain, "", model) else system


def kernels_for(
    kernels: Profile | str, weights: str | None, model: object, system: System | None
) -> Profile | str:
    """Return a kernel profile that reads weights of a type; arguments as :func:`with_weights`.

    Without a system, products may be in any type.
    """
    if isinstance(kernels, str) and system is not None:
        return with_weights(replace(system, kernels=kernels), weights, model).kernels
    profile = Profile.resolve(kernels)
    stored = None if weights or profile.quantization else types_of(model)
    if not weights and stored is None:
        return kernels
    text = _stated(weights) if weights else stored.text if stored is not None else PLAIN
    if text == PLAIN:
        return replace(profile, quantization=None)
    return profile.with_weights(text if system is None else _computable(text, system))


def types_of(model: object) -> StoredWeights | None:
    """Return the types of the weights in the checkpoint of a model; None where it states none."""
    if isinstance(model, Model):
        return model.weight_types()
    return stored_weights(str(model)) if isinstance(model, (str, Path)) else None


def _stated(weights: str) -> str:
    kind = weights.partition(",")[0]
    check_choice(kind, "type of weights", (PLAIN, *KINDS), "--quantize")
    return weights


def settled(kernels: str) -> str | None:
    """Return the type to state for steps whose system has been chosen by :func:`with_weights`."""
    return None if quantizes(kernels) else PLAIN


def weights_line(kernels: str) -> str:
    """Return the type of the weights that a kernel profile names, in words; empty without one."""
    text = kernels.partition(WEIGHTS)[2]
    if not text:
        return ""
    chosen = weight_quantization(text, kernels)
    stays = f"; in 16 bits: {', '.join(chosen.others)}" if chosen.others else ""
    return f"weights of products: {text.partition(',')[0]}, {chosen.bits:.5g} bits{stays}"


def quantizes(kernels: str) -> bool:
    """Return whether the products of a kernel profile read quantized operands."""
    return Profile.resolve(kernels).quantization is not None


def _computable(text: str, system: System) -> str:
    """Return a text of weights that a device multiplies; others are converted inside products."""
    dtype = weight_quantization(text, "--quantize").dtype
    return text if multiplies(system, dtype) else f"{text},dtype=operands"

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Draw values for the parameters of an entry, so that wrong results show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from tvm import ir

from tvm_distir.core.rewriting import entry_of
from tvm_distir.execution.runtime.program.io_layout import np_dtype
from tvm_distir.support import ModelError
from tvm_distir.transforms import SerializePipeline

from .input_specs import InputSpec, input_specs

Array = npt.NDArray[np.generic]

DISTRIBUTIONS = ("normal", "below one", "above one", "integers", "zeros and ones")
"""Distributions of data: standard normal, uniform in (0.1, 0.9), uniform in (1.1, 1.9), the
integers {1, 2, 3}, and {0, 1}. Logarithms and inverse functions are finite for some of them only;
comparisons come out both ways for integers, and logical operations for zeros and ones."""

POSITIVE = "positive"
"""The distribution for which all data and weights are positive, data uniform in (0.1, 0.9) and
weights of mean 1 / fan_in: sums then grow with their terms, as of activations behind a rectifier,
and leave the range in which an accumulator of a narrow type still changes."""

_INTEGERS = {"integers": (1, 4), "zeros and ones": (0, 2)}


def draw_inputs(
    mod: ir.IRModule,
    seed: int = 0,
    exact: bool = False,
    weights: Mapping[str, Array] | None = None,
    distribution: str = "normal",
) -> list[Array]:
    """Draw an array for each tensor among the parameters of a module's entry.

    Parameters
    ----------
    mod : IRModule
        The module, at the global or annotated level.
    seed : int
        The seed; each parameter has its stream of ``numpy.random.default_rng([seed, index])``.
    exact : bool
        Floats from {-2, -1, 0, 1, 2} (variances from {1, 2}), whose sums are exact, so that any
        order of reduction gives the same bits.
    weights : mapping of str to array, optional
        Values of weights by name, used where they are given; ignored when ``exact``. One that is
        filled with a single value is drawn all the same: it would hide a wrong placement.
    distribution : str
        The distribution of data, of :data:`DISTRIBUTIONS`, or :data:`POSITIVE`.

    Returns
    -------
    list of array
        The arrays in the order of the parameters. Data have the distribution, weights are normal
        with deviation ``gain / sqrt(fan_in)`` (He et al. 2015 for convolutions), biases and means
        small, scales near 1, variances uniform in [0.5, 1.5], integers inside the range that their
        consumers allow. Words of quantized numbers have all bits, and their steps are such that the
        numbers they mean have the deviation of weights.

    Raises
    ------
    ModelError
        DIST0340 a parameter cannot be drawn, or a given weight has another shape; DIST0341 which
        function is meant is not clear.
    """
    fixed = {} if exact or weights is None else weights
    mod = SerializePipeline()(mod)
    arrays, entry = [], entry_of(mod)
    for index, spec in enumerate(input_specs(mod)):
        cached = fixed.get(spec.name) if spec.usage != "data" else None
        if cached is not None and tuple(cached.shape) != spec.shape:
            problem = f"the given weight has the shape {list(cached.shape)}, not {list(spec.shape)}"
            remedy = "Give the weights of this model."
            raise ModelError("DIST0340", problem, location=f"{entry}/{spec.name}", remedy=remedy)
        if cached is not None and not is_constant_filled(cached):
            arrays.append(cached.astype(np_dtype(spec.dtype), order="C"))
            continue
        arrays.append(_draw(spec, np.random.default_rng([seed, index]), exact, distribution))
    return arrays


def is_constant_filled(array: Array) -> bool:
    """Return whether an array of several elements holds a single value only."""
    return array.size > 1 and bool((array == array.reshape(-1)[0]).all())


def _draw(spec: InputSpec, rng: np.random.Generator, exact: bool, distribution: str) -> Array:
    dtype = np_dtype(spec.dtype)
    if "float" not in spec.dtype:
        return rng.integers(spec.low, spec.high, spec.shape).astype(dtype)
    if spec.usage == "data" and distribution in _INTEGERS:
        return rng.integers(*_INTEGERS[distribution], spec.shape).astype(dtype)
    if exact:
        low = 1 if spec.usage == "variance" else -2
        return rng.integers(low, 3, spec.shape).astype(dtype)
    if spec.usage == "variance":
        return rng.uniform(0.5, 1.5, spec.shape).astype(dtype)
    if spec.usage == "step":
        steps = rng.uniform(0.5, 1.5, spec.shape) * (spec.gain / np.sqrt(spec.fan_in))
        return np.asarray(steps, dtype)
    if spec.usage == "data" and distribution != "normal":
        least = 1.1 if distribution == "above one" else 0.1
        return np.asarray(rng.uniform(least, least + 0.8, spec.shape), dtype)
    values = rng.standard_normal(spec.shape, dtype=np.float32)
    if distribution == POSITIVE:
        values = np.abs(values)
    if spec.usage == "weight" and distribution == POSITIVE:
        mean = np.sqrt(2 / np.pi)
        values *= np.float32(min(spec.gain, 1.0) / (mean * spec.fan_in))
    elif spec.usage == "weight":
        values *= np.float32(spec.gain / np.sqrt(spec.fan_in))
    elif spec.usage in ("bias", "mean", "scale"):
        values *= np.float32(0.1)
    if spec.usage == "scale":
        values += np.float32(1.0)
    return values.astype(dtype)

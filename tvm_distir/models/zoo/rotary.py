# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compute rotary position embeddings with the scalings of today's models."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from .decoder_config import DecoderConfig, yarn_scale
from .transformer_blocks import back_to, emit, in_float32, part

Floats = npt.NDArray[np.float64]


def frequencies(config: DecoderConfig, theta: float) -> tuple[Floats, float]:
    """Return the angles per position, (rotated / 2,), and the factor of cosines and sines.

    Notes
    -----
    Su et al. 2021, "RoFormer", eq. 15. ``linear``: Chen et al. 2023, "Position interpolation".
    ``llama3``: Grattafiori et al. 2024, the published model code. ``yarn``: Peng et al. 2023,
    eqs. 17 to 22.
    """
    width, factor = config.rotated, config.rotary_factor
    plain = theta ** (-np.arange(0, width, 2) / width)
    if config.rotary_scaling == "linear":
        return plain / factor, 1.0
    if config.rotary_scaling == "llama3":
        turns = config.rotary_positions * plain / (2 * math.pi)
        low, high = config.rotary_low, config.rotary_high
        share = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return (1 - share) * plain / factor + share * plain, 1.0
    return _yarn(config, plain, theta) if config.rotary_scaling == "yarn" else (plain, 1.0)


def _yarn(config: DecoderConfig, plain: Floats, theta: float) -> tuple[Floats, float]:
    width, factor = config.rotated, config.rotary_factor

    def dim_of(rotations: float) -> float:
        """Return the pair whose angle makes so many rotations over the original positions."""
        turns = config.rotary_positions / (rotations * 2 * math.pi)
        return width * math.log(turns) / (2 * math.log(theta))

    first, last = dim_of(config.rotary_high), dim_of(config.rotary_low)
    if config.rotary_rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    ramp = np.clip((np.arange(width // 2) - first) / max(last - first, 0.001), 0.0, 1.0)
    angles = plain / factor * ramp + plain * (1 - ramp)
    if config.rotary_mscale and config.rotary_mscale_all:
        return angles, yarn_scale(factor, config.rotary_mscale) / yarn_scale(
            factor, config.rotary_mscale_all
        )
    return angles, yarn_scale(factor)


def tables(config: DecoderConfig, position_ids: Tensor, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines for positions (..., seq), both float32 (..., seq, rotated).

    The sines of the first half are negated, so that ``x cos + swapped(x) sin`` is the rotation.
    """
    speeds, scale = frequencies(config, theta)
    half = config.rotated // 2
    both = np.concatenate([speeds, speeds]).astype("float32")[None, :]
    factors = np.full((1, 2 * half), scale, "float32")
    signed = factors * np.where(np.arange(2 * half) < half, -1.0, 1.0).astype("float32")
    position = nn.op.unsqueeze(nn.op.astype(position_ids, "float32"), position_ids.ndim)
    angles = nn.op.multiply(position, Tensor.from_const(both), name="angles")
    cos = emit(relax.op.cos(angles._expr), "cos")
    if scale != 1.0:
        cos = nn.op.multiply(cos, Tensor.from_const(factors), name="scaled_cos")
    sin = emit(relax.op.sin(angles._expr), "sin")
    return cos, nn.op.multiply(sin, Tensor.from_const(signed), name="signed_sin")


def rotate(x: Tensor, cos: Tensor, sin: Tensor, config: DecoderConfig) -> Tensor:
    """Apply the rotary embedding to (batch, heads, seq, width), computed in float32.

    Of a wider head the first part is rotated. Nothing is where positions are learned.
    """
    if config.positions:
        return x
    dtype, width, rotated = x.dtype, x.shape[3], config.rotated
    rest = part(x, rotated, width, "unrotated") if width > rotated else None
    x = in_float32(part(x, 0, rotated, "rotated") if rest is not None else x)
    half = rotated // 2
    if config.rotary_interleaved:
        batch, heads, seq, _ = x.shape
        x = nn.op.reshape(x, (batch, heads, seq, half, 2))
        x = nn.op.reshape(nn.op.permute_dims(x, [0, 1, 2, 4, 3]), (batch, heads, seq, rotated))
    first, second = part(x, 0, half, "first"), part(x, half, rotated, "second")
    swapped = nn.op.concat([second, first], dim=3, name="swapped")
    turned = back_to(nn.op.add(nn.op.multiply(x, cos), nn.op.multiply(swapped, sin)), dtype)
    return turned if rest is None else nn.op.concat([turned, rest], dim=3, name="joined")

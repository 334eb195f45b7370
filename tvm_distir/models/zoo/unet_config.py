# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the configuration of the diffusion U-Net."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm_distir.support import parse_int, shortened

from .configs import Config, Fault, indivisible


@dataclass(frozen=True)
class UnetConfig(Config):
    """Configuration of a U-Net that predicts the noise of an image, or of a latent.

    Attributes
    ----------
    channels : int
        The channels of the first level.
    multipliers : str
        Channels of the levels, in units of ``channels``: "1-2-4-4".
    depth : int
        The residual blocks per level on the way down; there is an additional block on the way up.
    attention : int
        The number of levels, from the first, that have a transformer after each block. The middle
        always has one.
    heads, groups : int
        The number of heads of attention, and of groups of group norms; both divide the channels of
        every level.
    context, tokens : int
        Width and count of the tokens that cross-attention looks at (a text); width 0: none.
    image, inputs : int
        Rows and columns (which 2 divides once less than there are levels), and channels in
        and out.
    batch : int
        The samples of the data inputs ``sample`` (batch, inputs, image, image), ``timesteps``
        (batch,) and, if there is one, ``text`` (batch, tokens, context).
    dtype : str
        The dtype of data, weights and activations: float32, float16 or bfloat16; times are float32.
    nested : int
        1: residual blocks and transformers are private functions, shared by equal ones.
    """

    MAY_BE_ZERO = frozenset({"attention", "context"})

    channels: int = 320
    multipliers: str = "1-2-4-4"
    depth: int = 2
    attention: int = 3
    heads: int = 8
    groups: int = 32
    context: int = 768
    tokens: int = 77
    image: int = 64
    inputs: int = 4
    batch: int = 2
    dtype: str = "float32"
    nested: int = 1

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the channels of each level."""
        words = self.multipliers.split("-")
        return tuple(self.channels * (parse_int(word) or 0) for word in words)

    def faults(self) -> Iterator[Fault]:
        """Yield faults, including invalid multipliers, and sizes that do not fit."""
        yield from super().faults()
        words = self.multipliers.split("-")
        if not all(parse_int(word, 1) for word in words):
            yield (
                f'multipliers="{shortened(self.multipliers)}"',
                "Write a number per level: 1-2-4-4.",
            )
            return
        if self.channels % 2:
            yield (
                f"channels={self.channels} is odd",
                "Choose an even number for the time embedding.",
            )
        for width in self.widths:
            yield from indivisible("channels of a level", width, "heads", self.heads)
            yield from indivisible("channels of a level", width, "groups", self.groups)
        if self.image % (1 << (len(words) - 1)):
            yield (
                f"image={self.image} cannot be halved {len(words) - 1} times",
                "Choose a multiple of a higher power of two, or fewer levels.",
            )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the kinds of weights that kernel profiles name: ``serving:weights=int4,bits=4.25``.

The bits of an element include its share of the scales: float32 per block of 128 x 128 for
``fp8-block``, 16 bits per 128 elements for ``int4``, 8 bits per 16, 32 and 32 elements for
``nvfp4``, ``mxfp4`` and ``mxfp8``, float32 per 64 elements for ``nf4`` and ``fp4``. Kinds without a
``dtype`` are converted to that of the other operand inside of products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from annotated_types import Le

from tvm_distir.support import (
    HardwareError,
    Positive,
    PositiveCount,
    Text,
    nearest,
    shipped_data,
)

WEIGHTS = ":weights="
"""What separates the name of a profile and a kind of weights."""
KINDS: Mapping[str, Mapping[str, Any]] = shipped_data(__file__, "weight_kinds.json")
"""The bits and the type of the arithmetic of each kind of weights."""
UNQUANTIZED = ("lm_head*", "*router*", "embed_tokens*")
"""Patterns of the weights that checkpoints store in 16 bits, unless they state others."""
OPERANDS = "operands"
"""Type of the arithmetic of products in the type of their other operand."""


@dataclass(frozen=True)
class Quantization:
    """Products of 16-bit floats whose operands are quantized.

    Attributes
    ----------
    bits : float
        The bits of an element of a quantized operand, its share of the scales included.
    dtype : str
        The type of the arithmetic, as the peaks of devices name it; empty: that of the operands.
    operands : str
        ``all``; or ``weights``, which are quantized beforehand.
    passes : int
        How often a kernel that quantizes an operand reads it: twice where the scale of a whole
        tensor has to be known first.
    others : tuple of str
        Patterns of names of weights that are not quantized, such as ``lm_head*``, or not in a
        share of the layers, as ``*o_proj*@0.25``. The first that matches counts.
    copies : bool
        Whether training steps store quantized copies of what ``all`` quantizes; otherwise they
        save it in 16 bits.
    parameters : bool
        Whether training steps with copies store trained weights as their two copies alone, beside
        the optimizer's shards; otherwise in 16 bits besides. They are gathered as a copy.
    gathers : bool
        Whether training steps with copies gather activations and gradients as copies, where only
        products read what is gathered.
    """

    bits: Annotated[Positive, Le(16)]
    dtype: str = ""
    operands: Literal["all", "weights"] = "all"
    passes: PositiveCount = 1
    others: tuple[Text, ...] = ()
    copies: bool = True
    parameters: bool = False
    gathers: bool = False

    def bits_of(self, name: str) -> float:
        """Return the mean bits of an element of a weight; 16 for one that is not quantized."""
        for pattern, _, share in (text.partition("@") for text in self.others):
            if fnmatchcase(name, pattern):
                return self.bits + (16 - self.bits) * float(share or 1)
        return self.bits


def weight_quantization(text: str, location: str) -> Quantization:
    """Return the quantization of a text ``KIND,bits=B,others=A|B@0.5,dtype=T``.

    Parameters
    ----------
    text : str
        A kind of :data:`KINDS`, or ``intN`` with ``bits``; patterns of other weights, by default
        :data:`UNQUANTIZED`; and the type of the arithmetic, where it is not that of the kind.
    location : str

    Raises
    ------
    HardwareError
        DIST0701 for an unknown kind, DIST0703 for an option that is unknown or wrong.
    """
    kind, *options = text.split(",")
    values = dict(option.partition("=")[::2] for option in options)
    try:
        bits = float(values.pop("bits")) if "bits" in values else None
        if bits is not None and not 0 < bits <= 16:
            raise ValueError
    except ValueError:
        raise HardwareError(
            "DIST0703", "bits is not a number up to 16", location=location, remedy="Correct it."
        ) from None
    if kind not in KINDS and (bits is None or not kind.removeprefix("int").isdecimal()):
        raise HardwareError(
            "DIST0701", f'there is no kind of weights "{kind}"', location=location,
            remedy=f"{nearest(kind, KINDS)} Available: {', '.join(KINDS)}.",
        )  # fmt: skip
    known = KINDS.get(kind, {"bits": bits})
    dtype = str(values.pop("dtype", known.get("dtype", "")))
    others = values.pop("others", "|".join(UNQUANTIZED))
    if values:
        raise HardwareError(
            "DIST0703", f'a kind of weights has no option "{next(iter(values))}"',
            location=location, remedy="Known: bits, dtype, others.",
        )  # fmt: skip
    few = float(known["bits"] if bits is None else bits)
    return Quantization(
        few, "" if dtype == OPERANDS else dtype, "weights",
        others=tuple(others.split("|")) if others else (),
    )  # fmt: skip

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define the shares of peak rates that kernels attain."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_distir.support import Fraction

LIKE = {
    "batched": "matmul", "vocabulary": "matmul", "unaligned": "matmul", "scores": "memory",
    "logits": "memory", "attention_backward": "attention", "attention_decode": "attention",
    "flash_attention_2": "attention",
}  # fmt: skip
"""Kernel classes that default to another class where a system does not list them."""


@dataclass(frozen=True)
class Efficiency:
    """Fractions of the peaks that kernels of the same class reach."""

    flops: Fraction
    bandwidth: Fraction

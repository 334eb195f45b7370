# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the classes of kernels, by which a cost model rates the work of an op."""

from __future__ import annotations

KERNEL_CLASSES = (
    "matmul", "conv", "attention", "memory", "gather", "view", "batched", "vocabulary", "scores",
    "logits", "unaligned", "attention_backward", "attention_decode", "flash_attention_2",
)  # fmt: skip
"""Kernel classes, which differ in the fractions of the peaks that they reach."""
VIEW = "view"
"""The kernel class that costs nothing: the result is the operand's memory."""
TENSOR_CLASSES = (
    "matmul", "conv", "attention", "batched", "vocabulary", "unaligned", "attention_backward",
    "attention_decode", "flash_attention_2",
)  # fmt: skip
"""Kernel classes that run at the peak of the matrix units."""

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define measured rows: steps of GPT models, of any model, and matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .cost_terms import CostTerms


@dataclass(frozen=True)
class MeasuredStep:
    """A training step of a GPT by Megatron: its sizes, and how long it took.

    Attributes
    ----------
    global_batch, micro_batch : int
        The sequences of a step, and of a micro-batch on a single replica.
    hidden, heads, layers, seq, vocab : int
    tp, dp, pp, chunks : int
        Degrees of parallelism; stages per rank.
    recompute : str
        A policy: ``none``, ``core`` or ``checkpoint``, Megatron-LM's selective and full ones.
    sequence_parallel : int
        0 or 1.
    time_s : float
        Measured; 0 where it is not known.
    weight : float
        The weight of the row in a fit.
    """

    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    seq: int
    tp: int
    dp: int
    pp: int
    vocab: int = 51200
    chunks: int = 1
    sequence_parallel: int = 0
    recompute: str = "checkpoint"
    time_s: float = 0.0
    weight: float = 1.0

    @property
    def micro_batches(self) -> int:
        """Return the number of micro-batches of a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def devices(self) -> int:
        """Return the number of devices that run the step."""
        return self.tp * self.dp * self.pp

    def groups(self, per_node: int) -> tuple[str, ...]:
        """Return the groups that errors are reported for; ``per_node`` devices share a node."""
        return f"tp {self.tp}", f"pp {self.pp}", f"nodes {-(-self.devices // per_node)}"


@dataclass(frozen=True)
class StepRow:
    """A training step of any model: a micro-batch, on all devices.

    Attributes
    ----------
    model : str
        The model, as the command line takes it; its batch is that of all devices.
    strategy : str
        The strategy, as the command line takes it; empty: a single device.
    axes : tuple of (str, int)
        The axes of the mesh, with their sizes.
    loss, optimizer : str
    time_s, weight : float
        The time and weight, as those of :class:`MeasuredStep`.
    """

    model: str
    strategy: str = ""
    axes: tuple[tuple[str, int], ...] = ()
    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    time_s: float = 0.0
    weight: float = 1.0

    @property
    def devices(self) -> int:
        """Return the number of devices that run the step."""
        return math.prod(size for _, size in self.axes)

    def groups(self, per_node: int) -> tuple[str, ...]:
        """Return the groups that errors are reported for; ``per_node`` devices share a node."""
        return f"devices {self.devices}", f"nodes {-(-self.devices // per_node)}"


@dataclass(frozen=True)
class ProductRow:
    """A matrix product, (m, k) by (k, n), in a separate kernel.

    Attributes
    ----------
    m, k, n : int
    dtype, out_dtype : str
        The dtypes of the operands, and of the result.
    accumulate : int
        1: added to what is there, which is read.
    time_s, weight : float
        The time and weight, as those of :class:`MeasuredStep`.
    """

    m: int
    k: int
    n: int
    dtype: str = "float16"
    out_dtype: str = "float16"
    accumulate: int = 0
    time_s: float = 0.0
    weight: float = 1.0

    @property
    def flops(self) -> int:
        """Return the FLOPs of the product."""
        return 2 * self.m * self.k * self.n

    @property
    def bytes(self) -> int:
        """Read and written."""
        written_bytes = (1 + self.accumulate) * self.m * self.n * BYTES[self.out_dtype]
        return (self.m * self.k + self.k * self.n) * BYTES[self.dtype] + written_bytes

    def groups(self, per_node: int) -> tuple[str, ...]:
        """Return the groups that errors are reported for: none."""
        return ()


@dataclass(frozen=True)
class TracedRow:
    """Work of a traced step, which took so much time.

    Attributes
    ----------
    terms : CostTerms
    family : str
        The group that its error is reported for.
    time_s, weight : float
        The time and weight, as those of :class:`MeasuredStep`.
    """

    terms: CostTerms
    family: str
    time_s: float
    weight: float

    def groups(self, per_node: int) -> tuple[str, ...]:
        """Return the groups that errors are reported for."""
        return (self.family,)


AnyRow = MeasuredStep | StepRow | ProductRow | TracedRow
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""The bytes of the types of measured products."""

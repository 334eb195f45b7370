# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define a configuration of a step: model sizes and their distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tvm_distir.support import SimulationError

GLOBAL_BATCH = "global_batch"
"""The column that may replace, or accompany, ``micro_batches``."""
ALIASES: Mapping[str, str] = {
    "tensor_parallelism": "tp",
    "pipeline_parallelism": "pp",
    "data_parallelism": "dp",
    "virtual_stages": "chunks",
    "zero_stage": "zero",
    "hidden_size": "hidden",
    "attention_heads": "heads",
    "num_layers": "layers",
    "sequence_length": "seq",
    "vocab_size": "vocab",
}
"""Other names of columns, those of published tables."""
DIM = "dim:"
"""Columns of sizes of symbolic dims of imported models begin so."""


@dataclass(frozen=True)
class Configuration:
    """Configuration that a row asks for.

    Attributes
    ----------
    sizes : tuple of (str, str)
        The keys of a model of the zoo, or symbolic dims of an imported model, with their values.
    tp, pp, dp : int
        Devices along the axes of the mesh: of tensors, of stages, of the batch.
    micro_batch : int
        Samples of a micro-batch on each part of ``dp``.
    micro_batches : int
        The number of micro-batches of a step.
    chunks : int
        Stages per rank.
    zero : int
        Stage of ZeRO; 0: none.
    sequence_parallel : int
        0 or 1.
    schedule : str
        Kind of schedule.
    recompute : str
        The recomputation of the backward pass.
    """

    sizes: tuple[tuple[str, str], ...] = ()
    tp: int = 1
    pp: int = 1
    dp: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    chunks: int = 1
    zero: int = 0
    sequence_parallel: int = 0
    schedule: str = "1f1b"
    recompute: str = "none"

    @property
    def devices(self) -> int:
        """Return the number of devices that run the step."""
        return self.tp * self.pp * self.dp

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.micro_batch * self.micro_batches * self.dp

    @property
    def stages(self) -> int:
        """Return the number of stages of the pipeline."""
        return self.pp * self.chunks

    def mesh(self, training: bool) -> dict[str, int]:
        """Return the mesh axes, stages first; axes of size 1 are left out, except the first."""
        axes = {"pp": self.pp, "dp": self.dp, "tp": self.tp}
        if not training:
            del axes["pp"]
        first = next(iter(axes))
        sizes = {axis: size for axis, size in axes.items() if size > 1 or axis == "pp"}
        return sizes or {first: 1}

    def strategy(self, tensor: str, training: bool) -> str:
        """Return the strategies of the row, as ``--strategy`` takes them.

        Parameters
        ----------
        tensor : str
            The strategy of ``tp``.
        training : bool
            Whether the step is a training step, in micro-batches.
        """
        result = []
        if training:
            options = [f"micro_batches={self.micro_batches}"]
            options += [f"schedule={self.schedule}"] * (self.schedule != WORDS["schedule"])
            options += [f"chunks={self.chunks}"] * (self.chunks > 1)
            result.append(f"pipeline:{','.join(options)}")
        if self.zero:
            result.append(f"zero:stage={self.zero}")
        elif self.dp > 1 or (not training and self.tp == 1):
            result.append("data_parallel")
        if self.tp > 1:
            mark = ("," if ":" in tensor else ":") + "sequence=1"
            result.append(tensor + mark * bool(self.sequence_parallel))
        return "+".join(result)

    def check(self, training: bool) -> None:
        """Refuse configurations that no model can have.

        Raises
        ------
        SimulationError
            DIST0751.
        """
        if not training:
            alone = {"pp": 1, "micro_batches": 1, "chunks": 1, "zero": 0, "recompute": "none"}
            for name, only in alone.items():
                if getattr(self, name) != only:
                    raise refused(
                        f"{name}={getattr(self, name)} requires a training step", "Add --train."
                    )
        if self.zero and self.dp == 1:
            raise refused(f"zero={self.zero} without dp", "Give dp of more than 1, or zero=0.")
        if self.sequence_parallel and self.tp == 1:
            raise refused("sequence_parallel=1 without tp", "Give tp of more than 1.")


_USUAL = {field.name: field.default for field in fields(Configuration) if field.name != "sizes"}
INTEGERS: Mapping[str, int] = {k: v for k, v in _USUAL.items() if isinstance(v, int)}
"""Columns of whole numbers, and what holds where they are not given."""
WORDS: Mapping[str, str] = {k: v for k, v in _USUAL.items() if isinstance(v, str)}
"""Columns of words, and what holds where they are not given."""


def refused(problem: str, remedy: str, location: str = "configuration") -> SimulationError:
    """Return the error of an invalid configuration."""
    return SimulationError("DIST0751", problem, location=location, remedy=remedy)

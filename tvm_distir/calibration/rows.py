# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Measured training steps of GPT models, from CSV files."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import SimulationError

_NAMES: Mapping[str, tuple[str, ...]] = {
    "global_batch": ("global_batch",),
    "micro_batch": ("micro_batch",),
    "hidden": ("hidden_size", "hidden"),
    "heads": ("attention_heads", "heads"),
    "layers": ("num_layers", "layers"),
    "seq": ("sequence_length", "seq"),
    "tp": ("tensor_parallelism", "tp"),
    "dp": ("data_parallelism", "dp"),
    "pp": ("pipeline_parallelism", "pp"),
}
"""Columns, by any of their names."""
_OTHERS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "vocab": (("vocab_size", "vocab"), 51200),
    "chunks": (("virtual_stages", "vpp_chunks", "interleave_m"), 1),
    "sequence_parallel": (("sequence_parallel",), 0),
}
TIME = "iteration_time_ms"


@dataclass(frozen=True)
class Row:
    """A training step of a GPT by Megatron: its sizes, and how long it took.

    Attributes
    ----------
    global_batch, micro_batch : int
        Sequences of a step, and of one micro-batch on one replica.
    hidden, heads, layers, seq, vocab : int
    tp, dp, pp, chunks : int
        Degrees of parallelism; stages per rank.
    recompute : str
        ``none``, ``selective`` or ``full``.
    sequence_parallel : int
        0 or 1.
    time_s : float
        Measured; 0 where it is not known.
    weight : float
        How much a fit heeds it.
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
    recompute: str = "full"
    time_s: float = 0.0
    weight: float = 1.0

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def devices(self) -> int:
        """Devices that run the step."""
        return self.tp * self.dp * self.pp


def read_rows(path: str | Path, measured: bool = True) -> list[Row]:
    """Read rows from a CSV file.

    Parameters
    ----------
    path : str or Path
        Columns as in ``docs/simulator.md``; others are passed over.
    measured : bool
        Whether a column ``iteration_time_ms`` must be there.

    Raises
    ------
    SimulationError
        DIST0730 for a file that cannot be read, a missing column, or a value that is no number.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
    except OSError as error:
        raise _wrong(
            str(path), f"it cannot be read: {error.strerror}", "Check the path."
        ) from error
    return [_row(row, f"{path}:{2 + n}", measured) for n, row in enumerate(found)]


def _row(row: Mapping[str, str], place: str, measured: bool) -> Row:
    values: dict[str, int] = {}
    for key, names in _NAMES.items():
        default = "1" if key == "dp" else None
        values[key] = _integer(row, names, default, place)
    for key, (names, value) in _OTHERS.items():
        values[key] = _integer(row, names, str(value), place)
    count = values["dp"] * values["micro_batch"]
    if values["global_batch"] % count:
        raise _wrong(
            place, f"global_batch {values['global_batch']} is no multiple of {count}",
            "It counts the sequences of all replicas and micro-batches.",
        )  # fmt: skip
    time_ms = 0.0
    if measured:
        text = row.get(TIME) or ""
        try:
            time_ms = float(text)
        except ValueError:
            raise _wrong(place, f"{TIME} is {text!r}", "Give milliseconds.") from None
    recompute = row.get("recompute") or "full"
    if recompute not in ("none", "selective", "full"):
        raise _wrong(place, f"recompute is {recompute!r}", "Give none, selective or full.")
    return Row(**values, recompute=recompute, time_s=time_ms * 1e-3)


def _integer(
    row: Mapping[str, str], names: tuple[str, ...], default: str | None, place: str
) -> int:
    text = next((row[name] for name in names if row.get(name)), default)
    try:
        value = int(float(text or ""))
    except ValueError:
        raise _wrong(place, f"{names[0]} is {text!r}", "Give a whole number.") from None
    if value < 0:
        raise _wrong(place, f"{names[0]} is {value}", "Give a positive number.")
    return value


def _wrong(place: str, what: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0730", what, place=place, remedy=remedy)

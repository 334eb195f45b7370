# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read measured rows from CSV files, whose columns tell the kind of measurement."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from tvm_distir.core.plan import CHECKPOINT, CORE, FULL, NONE, SELECTIVE
from tvm_distir.planning.option_names import is_misplaced
from tvm_distir.support import SimulationError, nearest, parse_float, shortened

from .rows import BYTES, AnyRow, MeasuredStep, ProductRow, StepRow

_COLUMNS: Mapping[str, tuple[tuple[str, ...], int | None]] = {
    "global_batch": (("global_batch",), None),
    "micro_batch": (("micro_batch",), None),
    "hidden": (("hidden_size", "hidden"), None),
    "heads": (("attention_heads", "heads"), None),
    "layers": (("num_layers", "layers"), None),
    "seq": (("sequence_length", "seq"), None),
    "tp": (("tensor_parallelism", "tp"), None),
    "dp": (("data_parallelism", "dp"), 1),
    "pp": (("pipeline_parallelism", "pp"), None),
    "vocab": (("vocab_size", "vocab"), 51200),
    "chunks": (("virtual_stages", "vpp_chunks", "interleave_m"), 1),
    "sequence_parallel": (("sequence_parallel",), 0),
}
"""Columns, by any of their names, with the value of rows that state none."""

_AXES = ("dp", "tp", "ep", "cp", "sp")
"""Columns with axes of the mesh of any model's step."""
TIME, PRODUCT_TIME = "iteration_time_ms", "time_us"
_GPT_COLUMNS = frozenset(
    [*(name for names, _ in _COLUMNS.values() for name in names), "recompute", TIME]
)
_STEP_COLUMNS = frozenset(["model", "strategy", "loss", "optimizer", *_AXES, TIME])
_PRODUCT_COLUMNS = frozenset(["m", "k", "n", "dtype", "out_dtype", "accumulate", PRODUCT_TIME])
_POLICIES: Mapping[str, str] = {NONE: NONE, SELECTIVE: CORE, FULL: CHECKPOINT}
"""The policies that correspond to Megatron-LM's names of recomputation."""


def read_rows(path: str | Path, measured: bool = True) -> Sequence[AnyRow]:
    """Read rows from a CSV file.

    Parameters
    ----------
    path : str or Path
        Columns as in ``docs/calibration.md``. Steps of any model where there is a column ``model``,
        products where there are ``m``, ``k`` and ``n``, else steps of GPTs. Other columns are
        passed over, but for those that say something of a step elsewhere.
    measured : bool
        Whether a column ``iteration_time_ms`` (of products ``time_us``) must be there.

    Raises
    ------
    SimulationError
        DIST0730 for a file that cannot be read, a missing column, a column that these rows do not
        have, or a value that is no number.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            records = [(f"{path}:{reader.line_num}", row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _wrong(str(path), f"it cannot be read: {why}", "Check the path.") from error
    make, known = (
        (_step, _STEP_COLUMNS)
        if "model" in columns
        else (_product, _PRODUCT_COLUMNS)
        if {"m", "k", "n"} <= columns
        else (_gpt, _GPT_COLUMNS)
    )
    for name in sorted(columns - known):
        if is_misplaced(name, known) or name in _GPT_COLUMNS | _STEP_COLUMNS | _PRODUCT_COLUMNS:
            problem = f'these rows have no column "{shortened(name)}"'
            raise _wrong(f"{path}:1", problem, nearest(name, known))
    for position, row in records:
        if None in row or None in row.values():
            raise _wrong(
                position, "its values are not as many as the columns", "Give each a value."
            )
    return [make(row, position, measured) for position, row in records]


def _step(row: Mapping[str, str], location: str, measured: bool) -> StepRow:
    sizes = [(axis, _integer(row, (axis,), 1, location)) for axis in _AXES]
    return StepRow(
        row["model"],
        row.get("strategy") or "",
        tuple((axis, size) for axis, size in sizes if size > 1),
        row.get("loss") or "cross_entropy",
        row.get("optimizer") or "sgd",
        _time(row, TIME, location, measured) * 1e-3,
    )


def _product(row: Mapping[str, str], location: str, measured: bool) -> ProductRow:
    m, k, n = (_integer(row, (name,), None, location) for name in "mkn")
    dtype = row.get("dtype") or "float16"
    out = row.get("out_dtype") or dtype
    for name in (dtype, out):
        if name not in BYTES:
            raise _wrong(location, f"the type {name!r}", f"Known: {', '.join(BYTES)}.")
    accumulate = _integer(row, ("accumulate",), 0, location)
    return ProductRow(
        m, k, n, dtype, out, accumulate, _time(row, PRODUCT_TIME, location, measured) * 1e-6
    )


def _gpt(row: Mapping[str, str], location: str, measured: bool) -> MeasuredStep:
    values = {
        key: _integer(row, names, default, location) for key, (names, default) in _COLUMNS.items()
    }
    count = values["dp"] * values["micro_batch"]
    if values["global_batch"] % count:
        raise _wrong(
            location, f"global_batch {values['global_batch']} is not a multiple of {count}",
            "Count the sequences of all replicas and micro-batches.",
        )  # fmt: skip
    recompute = row.get("recompute") or "full"
    if recompute not in _POLICIES:
        raise _wrong(location, f"recompute is {recompute!r}", "Give none, selective or full.")
    policy = _POLICIES[recompute]
    return MeasuredStep(
        **values, recompute=policy, time_s=_time(row, TIME, location, measured) * 1e-3
    )


def _time(row: Mapping[str, str], column: str, location: str, measured: bool) -> float:
    if not measured:
        return 0.0
    text = row.get(column) or ""
    seconds = parse_float(text)
    if not 0.0 < seconds < float("inf"):
        unit = "milliseconds" if column == TIME else "microseconds"
        raise _wrong(location, f"{column} is {text!r}", f"Give {unit}.")
    return seconds


def _integer(
    row: Mapping[str, str], names: tuple[str, ...], default: int | None, location: str
) -> int:
    """Read a positive integer, or one from 0 where that is the default."""
    usual, least = (None, 1) if default is None else (str(default), min(default, 1))
    text = next((row[name] for name in names if row.get(name)), usual)
    number = parse_float(text or "")
    if not number.is_integer():  # nor infinite
        raise _wrong(location, f"{names[0]} is {text!r}", "Give an integer.")
    if number < least:
        raise _wrong(location, f"{names[0]} is {int(number)}", f"Give {least} or more.")
    return int(number)


def _wrong(location: str, problem: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0730", problem, location=location, remedy=remedy)

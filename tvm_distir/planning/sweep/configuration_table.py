# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read tables of configurations from CSV files and grids, as columns."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from tvm_distir.planning.option_names import is_misplaced
from tvm_distir.support import MAX_DEVICES, MAX_INT, SimulationError, nearest, parse_int, shortened

from .configuration import ALIASES, DIM, GLOBAL_BATCH, INTEGERS, WORDS
from .table import DEVICES, MODEL, SYSTEM, Ints, Table

_REMEDIES = {"batch": f'Use "{GLOBAL_BATCH}", the samples of a whole step, or "micro_batch".'}
MOST_ROWS = 1 << 24
"""The maximum number of rows of a grid."""


def read_table(path: str | Path, keys: Collection[str], micro_batches: int = 1) -> Table:
    """Read configurations from a CSV file, a configuration per row.

    Parameters
    ----------
    path : str or Path
        The first line names columns: those of :class:`.configuration.Configuration`, or their
        :data:`.configuration.ALIASES`; ``global_batch``; keys of the model, ``dim:NAME`` for a
        symbolic dim. Others are handed on, but for options of other commands.
    keys : collection of str
        Keys of the model.
    micro_batches : int
        Micro-batches of a step where no column determines them.

    Raises
    ------
    SimulationError
        DIST0750 for a file that cannot be read, rows of other lengths, columns that are options
        elsewhere or misspelled, values that are none.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [(reader.line_num, row) for reader in [csv.reader(file)] for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise wrong(str(path), f"it cannot be read: {why}", "Give a CSV file in UTF-8.") from error
    lines = [(number, row) for number, row in lines if row]
    if len(lines) < 2:
        raise wrong(
            str(path),
            "it has no rows",
            "Give the column names in the first line, and at least one row.",
        )
    names = [ALIASES.get(cell.strip(), cell.strip()) for cell in lines[0][1]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not all(names):
        problem = f"the column {twice[0]!r} occurs twice" if twice else "a column has no name"
        raise wrong(f"{path}:{lines[0][0]}", problem, "Give each column a unique name.")
    for number, row in lines[1:]:
        if len(row) != len(names):
            problem = f"it has {len(row)} values for {len(names)} columns"
            raise wrong(f"{path}:{number}", problem, "Give each column a value.")
    columns = zip(*(row for _, row in lines[1:]), strict=True)
    cells = {name: list(map(str.strip, c)) for name, c in zip(names, columns, strict=True)}
    return _table(cells, keys, [f"{path}:{number}" for number, _ in lines[1:]], micro_batches)


def record_table(records: object, keys: Collection[str], micro_batches: int = 1) -> Table:
    """Return configurations that are mappings of values by column, as rows of a CSV file are.

    Parameters
    ----------
    records : sequence of mapping of str to object
        Values by column, see :func:`read_table`. A column that a configuration lacks, or that is
        None, is empty there.
    keys : collection of str
        Keys of the model.
    micro_batches : int
        Micro-batches of a step where no column determines them.

    Raises
    ------
    SimulationError
        DIST0750 where there are no configurations, an element is no mapping, a column occurs
        under two names, is an option elsewhere or is misspelled, or a value is invalid.
    """
    if isinstance(records, str) or not isinstance(records, Sequence) or not records:
        problem = f"no configurations are given, but {shortened(repr(records))}"
        raise wrong("rows", problem, "Give a path, values by column, or a list of mappings.")
    locations = [f"rows[{number}]" for number in range(len(records))]
    cells: dict[str, list[str]] = {}
    for number, (location, record) in enumerate(zip(locations, records, strict=True)):
        if not isinstance(record, Mapping):
            problem = f"it is no mapping of values by column, but {shortened(repr(record))}"
            raise wrong(location, problem, 'Give {"tp": 2, "dp": 4, ...}.')
        names = [ALIASES.get(str(name), str(name)) for name in record]
        for name, value in zip(names, record.values(), strict=True):
            if names.count(name) > 1:
                raise wrong(location, f"the column {name!r} occurs twice", "Give each column once.")
            column = cells.setdefault(name, [""] * len(records))
            shown = int(value) if isinstance(value, bool) else value
            column[number] = "" if value is None else str(shown).strip()
    return _table(cells, keys, locations, micro_batches)


def grid_table(
    axes: Mapping[str, Sequence[str]], keys: Collection[str], micro_batches: int = 1
) -> Table:
    """Return all combinations of values, the last column changing first.

    Parameters
    ----------
    axes : mapping of str to sequence of str
        Values by column, see :func:`read_table`.
    keys : collection of str
        Keys of the model.
    micro_batches : int
        Micro-batches of a step where no column determines them.

    Raises
    ------
    SimulationError
        DIST0750 for an unknown column, a value that is none, too many rows.
    """
    size = math.prod(len(values) for values in axes.values())
    if not 0 < size <= MOST_ROWS:
        raise wrong(
            "--grid", f"the grid has {size:,} rows", f"Give 1 to {MOST_ROWS:,} combinations."
        )
    names = [ALIASES.get(name, name) for name in axes]
    known = {*INTEGERS, *WORDS, GLOBAL_BATCH, *keys}
    for name in names:
        if name not in known and not name.startswith(DIM):
            raise _no_column("--grid", name, known)
        if names.count(name) > 1:
            raise wrong("--grid", f'the column "{name}" occurs twice', "Give each column once.")
    columns = zip(*itertools.product(*axes.values()), strict=True)
    cells = {name: list(c) for name, c in zip(names, columns, strict=True)}
    return _table(cells, keys, ["--grid"] * size, micro_batches)


def _table(
    cells: dict[str, list[str]], keys: Collection[str], locations: Sequence[str], micro_batches: int
) -> Table:
    size = len(locations)
    if GLOBAL_BATCH not in cells:
        cells.setdefault("micro_batches", [str(micro_batches)] * size)
    numbers = {
        name: _numbers(name, cells.pop(name), least, locations)
        if name in cells
        else np.full(size, usual, np.int64)
        for name, usual in INTEGERS.items()
        for least in [int(usual > 0)]
    }
    words = {
        name: [word or usual for word in cells.pop(name, [usual] * size)]
        for name, usual in WORDS.items()
    }
    sizes = {name: cells.pop(name) for name in list(cells) if name in keys or name.startswith(DIM)}
    table = Table(size, numbers, words, sizes)
    samples = cells.pop(GLOBAL_BATCH, None)
    _check_devices(table, locations)
    if samples is not None:
        _divide(table, _numbers(GLOBAL_BATCH, samples, 1, locations))
    for column in sizes.values():
        for row, value in enumerate(column):
            if not value:
                table.faults.setdefault(row, "a size of the model is missing")
    _check_others(cells, table, keys, locations)
    table.others = cells
    return table


def _check_others(
    cells: dict[str, list[str]], table: Table, keys: Collection[str], locations: Sequence[str]
) -> None:
    """Refuse columns that would seem to have an effect, and compare the numbers of devices."""
    repeated = {MODEL, SYSTEM, DEVICES}
    known = {*INTEGERS, *WORDS, *ALIASES, GLOBAL_BATCH, *keys}
    for name in (name for name in cells if is_misplaced(name, known | repeated)):
        raise _no_column(locations[0], name, known)
    if DEVICES not in cells:
        return
    devices = _numbers(DEVICES, cells.pop(DEVICES), 1, locations)
    for row in np.flatnonzero((devices > 0) & (devices != table.devices)).tolist():
        problem = f"devices={devices[row]} is not tp x pp x dp = {table.devices[row]}"
        table.faults.setdefault(row, problem)


def _numbers(name: str, column: Sequence[str], least: int, locations: Sequence[str]) -> Ints:
    """Return a column of integers, with defaults for empty cells."""
    known: dict[str, int] = {"": INTEGERS.get(name, 0)}
    for text, location in zip(column, locations, strict=True):
        if text in known:
            continue
        value = parse_int(text.removesuffix(".0"), least)
        if value is None:
            raise wrong(
                location, f'{name} is "{shortened(text)}"',
                f"Give an integer from {least} to {MAX_INT}.",
            )  # fmt: skip
        known[text] = value
    return np.array([known[text] for text in column], np.int64)


def _check_devices(table: Table, locations: Sequence[str]) -> None:
    for name in ("tp", "pp", "dp"):
        over = np.flatnonzero(table.numbers[name] > MAX_DEVICES)
        if over.size:
            raise wrong(
                locations[over[0]], f"{name} is {table.numbers[name][over[0]]}",
                f"Use at most {MAX_DEVICES:,} devices.",
            )  # fmt: skip
    for row in np.flatnonzero(table.devices > MAX_DEVICES).tolist():
        table.faults[row] = f"{table.devices[row]:,} devices exceed the limit"


def _divide(table: Table, samples: Ints) -> None:
    """Find the micro-batches of a step from its samples."""
    numbers = table.numbers
    each = numbers["micro_batch"] * numbers["dp"]
    specified = samples > 0
    for row in np.flatnonzero(specified & (samples % each > 0)).tolist():
        table.faults[row] = (
            f"global_batch={samples[row]} is not a multiple of dp x micro_batch = {each[row]}"
        )
    counts = np.where(specified, np.maximum(samples // each, 1), numbers["micro_batches"])
    differs = (numbers["micro_batches"] != 1) & (counts != numbers["micro_batches"])
    for row in np.flatnonzero(differs).tolist():
        problem = f"global_batch results in {counts[row]} micro-batches, micro_batches is"
        table.faults.setdefault(row, f"{problem} {numbers['micro_batches'][row]}")
    numbers["micro_batches"] = counts


def _no_column(location: str, name: str, known: Collection[str]) -> SimulationError:
    """Return the error of an unknown column, with the nearest known one."""
    remedy = _REMEDIES.get(name) or nearest(name, known)
    return wrong(location, f'there is no column "{shortened(name)}"', remedy)


def wrong(location: str, problem: str, remedy: str) -> SimulationError:
    """Return an error about a table."""
    return SimulationError("DIST0750", problem, location=location, remedy=remedy)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write saved analyses, searches and sweeps as one HTML page that sorts, filters and compares."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_distir.core.plan import mesh_text
from tvm_distir.support import Column, SimulationError, read_json, read_text
from tvm_distir.support.display import units

from .pages import render
from .saved_results import Outcome

ANALYSIS_STEP, SEARCH_STEP, SWEEP_STEP = "analysis", "search", "sweep"
_SWEEP_COLUMNS = {"time_s", "peak_memory_bytes", "fits", "bound_by", "status"}


def _share(value: float) -> str:
    return units.share(value, 1.0)


COLUMNS = (
    Column("name", "step"),
    Column("kind", "from"),
    Column("file", "file"),
    Column("model", "model"),
    Column("system", "system"),
    Column("strategy", "strategy"),
    Column("mesh", "mesh"),
    Column("time_s", "time", units.duration),
    Column("peak_memory_bytes", "peak memory", units.size),
    Column("fits", "fits"),
    Column("bound_by", "bound by"),
    Column("compute", "compute", _share),
    Column("communication", "communication", _share),
    Column("tokens_per_s", "tokens/s", units.count),
    Column("mfu", "MFU", _share),
)
"""Columns of the page; each is empty where a result does not have it."""


@dataclass(frozen=True)
class SavedSteps:
    """Steps that were read from files.

    Attributes
    ----------
    rows : list of dict
        Values by the names of :data:`COLUMNS`.
    skipped : list of str
        JSON and CSV files that are no results.
    """

    rows: list[dict[str, Any]]
    skipped: list[str]


def read_steps(folders: Sequence[Path]) -> SavedSteps:
    """Read the results in files, and in folders with all their folders.

    Analyses are read from ``analyze --json`` and ``analyze -o``, searches from ``search.json``, and
    sweeps from their CSV.

    Raises
    ------
    SimulationError
        DIST0740 for a file that cannot be read, and where there is no result at all.
    """
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    for folder in folders:
        paths = [folder] if not folder.is_dir() else sorted(folder.rglob("*"))
        for path in (path for path in paths if path.suffix in (".json", ".csv")):
            label = str(path.relative_to(folder)) if path != folder else path.name
            steps = list(_steps(path, label))
            rows += steps
            if not steps:
                skipped.append(label)
    if not rows:
        raise _refuse(
            ", ".join(map(str, folders)),
            "there is no result",
            "Name the folder of `analyze -o`, `search -o` or `sweep -o`, or its parent.",
        )
    return SavedSteps(rows, skipped)


def _refuse(location: str, problem: str, remedy: str) -> SimulationError:
    return SimulationError("DIST0740", problem, location=location, remedy=remedy)


def _steps(path: Path, label: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a file; none where it is no result."""
    if path.suffix == ".csv":
        yield from _sweep(path, label)
        return
    data = read_json(path, _refuse, "Name a file that tvm-distir wrote.")
    if not isinstance(data, Mapping):
        return
    if "spent_s" in data:
        yield _analysis(Outcome.from_dict(data, path.stem, str(path)), label)
    elif {"plans", "rows", "space"} <= data.keys():
        for row in data["rows"]:
            if row.get("time_s") is not None:
                yield _candidate(row, label)


def _analysis(outcome: Outcome, label: str) -> dict[str, object]:
    total_s = sum(outcome.spent_s.values()) or 1.0
    return {
        "name": outcome.strategy or outcome.name,
        "kind": ANALYSIS_STEP,
        "file": label,
        "model": outcome.model,
        "system": outcome.system,
        "strategy": outcome.strategy,
        "mesh": outcome.mesh,
        "time_s": outcome.time_s,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "fits": None if outcome.fits is None else "yes" if outcome.fits else "NO",
        "bound_by": outcome.bound_by,
        "compute": (outcome.spent_s["compute"] + outcome.spent_s["memory"]) / total_s,
        "communication": outcome.spent_s["communication"] / total_s,
        "tokens_per_s": outcome.figures.get("tokens_per_s"),
        "mfu": outcome.figures.get("mfu"),
    }


def _candidate(row: Mapping[str, Any], label: str) -> dict[str, object]:
    """Return the step of a candidate of a search."""
    time_s = row["time_s"] or 1.0
    shares = {
        name: row[key] / time_s
        for name, key in (("compute", "compute_s"), ("communication", "exposed_comm_s"))
        if row.get(key) is not None
    }
    return {
        "name": row["key"],
        "kind": SEARCH_STEP,
        "file": label,
        "mesh": mesh_text(row["mesh"]),
        "time_s": row["time_s"],
        "peak_memory_bytes": row.get("peak_bytes"),
        "fits": "yes" if row["state"] == "solved" else "NO",
        **shares,
    }


def _sweep(path: Path, label: str) -> Iterator[dict[str, Any]]:
    """Yield the predicted rows of a sweep; their names are the columns that vary."""
    lines = [*csv.DictReader(read_text(path, _refuse).splitlines())]
    if not lines or not lines[0].keys() >= _SWEEP_COLUMNS:
        return
    keys = [key for key in lines[0] if key not in _SWEEP_COLUMNS | {"way"}]
    varied = [key for key in keys if len({line[key] for line in lines}) > 1] or keys[:1]
    for line in lines:
        if line["time_s"]:
            yield {
                "name": ", ".join(f"{key}={line[key]}" for key in varied),
                "kind": SWEEP_STEP,
                "file": label,
                "time_s": float(line["time_s"]),
                "peak_memory_bytes": int(float(line["peak_memory_bytes"])),
                "fits": "yes" if line["fits"] == "1" else "NO",
                "bound_by": line["bound_by"],
            }


def results_page(steps: SavedSteps, title: str) -> str:
    """Write steps as a self-contained HTML page.

    Parameters
    ----------
    steps : SavedSteps
    title : str

    Returns
    -------
    page : str
        The same for the same steps, byte by byte. Columns without any value are left out.
    """
    filled = {key for row in steps.rows for key, value in row.items() if value is not None}
    columns = [column for column in COLUMNS if column.name in filled]
    heads = [{"title": column.title, "number": column.text is not None} for column in columns]
    values = [[(row.get(c.name), c) for c in columns] for row in steps.rows]
    rows = [[[value, column.cell(value)] for value, column in cells] for cells in values]
    data = {"columns": heads, "rows": rows}
    return render("results.html.j2", title=title, count=len(steps.rows), skipped=steps.skipped,
                  data=data)  # fmt: skip

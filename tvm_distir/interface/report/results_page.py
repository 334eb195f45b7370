# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write saved analyses, searches and sweeps as one HTML page that sorts, filters and compares."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tvm_distir.core.plan import mesh_text
from tvm_distir.support import Column, SimulationError, read_json, read_text
from tvm_distir.support.display import units

from .pages import render
from .saved_results import REPORT, Outcome

ANALYSIS_STEP, SEARCH_STEP, SWEEP_STEP, SERVED = "analysis", "search", "sweep", "serving"
_SWEEP_COLUMNS = {"time_s", "peak_memory_bytes", "fits", "bound_by", "status"}


def _share(value: float) -> str:
    return units.share(value, 1.0)


COLUMNS = (
    Column("name", "step"),
    Column("time_s", "time", units.duration),
    Column("tokens_per_s", "tokens/s", units.count),
    Column("ttft_p99_s", "TTFT p99", units.duration),
    Column("tpot_p99_s", "TPOT p99", units.duration),
    Column("cost", "$ per million tokens", "{:.4g}".format),
    Column("peak_memory_bytes", "peak memory", units.size),
    Column("fits", "fits"),
    Column("mfu", "MFU", _share),
    Column("bound_by", "bound by"),
    Column("compute", "compute", _share),
    Column("communication", "communication", _share),
    Column("mesh", "mesh"),
    Column("system", "system"),
    Column("model", "model"),
    Column("kind", "from"),
    Column("file", "file"),
)
"""Columns of the page; what all rows have in common is named above them instead."""

CHARTS = (
    ("peak_memory_bytes", "time_s", False),
    ("tokens_per_s", "cost", True),
    ("tpot_p99_s", "tokens_per_s", False),
)
"""Names of the columns of both axes, and whether more of the first is better.

Less of the second is better, but for tokens per second.
"""


@dataclass(frozen=True)
class SavedSteps:
    """Steps that were read from files.

    Attributes
    ----------
    rows : list of dict
        Values by the names of :data:`COLUMNS`, and the path of its ``report`` where there is one.
    skipped : list of str
        JSON and CSV files that are no results, and that this package did not write.
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
            steps = _steps(path, label)
            rows += steps or ()
            if steps is None:
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


def _steps(path: Path, label: str) -> list[dict[str, object]] | None:
    """Return the steps of a file; None for a file of others that is no result."""
    if path.suffix == ".csv":
        return [*_sweep(path, label)] or None
    data = read_json(path, _refuse, "Name a file that tvm-distir wrote.")
    if not isinstance(data, Mapping):
        return None
    if "spent_s" in data:
        return [_analysis(Outcome.from_dict(data, path.stem, str(path)), label, path)]
    if {"plans", "rows", "space"} <= data.keys():
        return [_candidate(row, label) for row in data["rows"] if row.get("time_s") is not None]
    if {"summary", "workload", "scheduler"} <= data.keys():
        return [_served(data, label)]
    if {"choices", "cuts"} <= data.keys():
        return [*_searched(data, label)]
    settings = path.name.endswith(".csv.sweep.json")
    return [] if settings or "schema_version" in data else None  # a plan, a program, a system


def _searched(data: Mapping[str, Any], label: str) -> Iterator[dict[str, object]]:
    """Yield the rows of what ``serve-search --json`` printed: choices that keep the levels."""
    for choice in data["choices"]:
        if "best" not in data:  # the choices of --rate
            yield _served({**data, **choice}, label)
        elif (best := data["best"]) is not None and choice["summary"] is not None:
            cost = best["usd_per_million_tokens"]
            if cost is not None:  # as that of the best choice, whose devices cost the same
                cost *= best["summary"]["output_tokens_per_s"] / best["devices"]
                cost *= choice["devices"] / choice["summary"]["output_tokens_per_s"]
            rate = f"{choice['requests_per_s']:g} requests/s"
            shared = {"workload": rate, "usd_per_million_tokens": cost}
            yield _served({**best, **choice, **shared}, label)


def _served(data: Mapping[str, Any], label: str) -> dict[str, object]:
    """Return the row of what ``serve-analyze`` or a choice of ``serve-search`` printed as JSON."""
    summary = data["summary"]
    cost, hour = data.get("usd_per_million_tokens"), data.get("usd_per_hour")
    if hour is not None:
        cost = hour / 3600e-6 / summary["output_tokens_per_s"]
    return {
        "name": f"{data['plan']}, {data['scheduler']}, {data['workload']}",
        "kind": SERVED,
        "file": label,
        "model": data["model"],
        "system": data["system"],
        "tokens_per_s": summary["output_tokens_per_s"],
        "ttft_p99_s": summary["ttft"]["p99_s"],
        "tpot_p99_s": summary["tpot"]["p99_s"],
        "cost": cost,
    }


def _analysis(outcome: Outcome, label: str, path: Path) -> dict[str, object]:
    total_s = sum(outcome.spent_s.values()) or 1.0
    pages = (path.with_name(REPORT), path.with_suffix(".html"))
    return {
        "report": next((page for page in pages if page.exists()), None),
        "name": outcome.strategy or outcome.name,
        "kind": ANALYSIS_STEP,
        "file": label,
        "model": outcome.model,
        "system": outcome.system,
        "mesh": outcome.mesh,
        "time_s": outcome.time_s,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "fits": None if outcome.fits is None else "yes" if outcome.fits else "NO",
        "bound_by": outcome.bound_by,
        "compute": (outcome.spent_s["compute"] + outcome.spent_s["memory"]) / total_s,
        "communication": outcome.spent_s["communication"] / total_s,
        "tokens_per_s": outcome.figures.get("tokens_per_s"),
        "mfu": outcome.figures.get("mfu"),
        "cost": outcome.figures.get("cost_per_million_tokens_usd"),
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


def _sweep(path: Path, label: str) -> Iterator[dict[str, object]]:
    """Yield the predicted rows of a sweep; their names are the columns that vary."""
    lines = [*csv.DictReader(read_text(path, _refuse).splitlines())]
    if not lines or not lines[0].keys() >= _SWEEP_COLUMNS:
        return
    keys = [key for key in lines[0] if key not in _SWEEP_COLUMNS | {"way", "model", "system"}]
    varied = [key for key in keys if len({line[key] for line in lines}) > 1] or keys[:1]
    for line in lines:
        if line["time_s"]:
            yield {
                "name": ", ".join(f"{key}={line[key]}" for key in varied),
                "kind": SWEEP_STEP,
                "file": label,
                "model": line.get("model"),
                "system": line.get("system"),
                "time_s": float(line["time_s"]),
                "peak_memory_bytes": int(float(line["peak_memory_bytes"])),
                "fits": "yes" if line["fits"] == "1" else "NO",
                "bound_by": line["bound_by"],
            }


def results_page(steps: SavedSteps, title: str, folder: Path | None = None) -> str:
    """Write steps as a self-contained HTML page.

    Parameters
    ----------
    steps : SavedSteps
    title : str
    folder : Path, optional
        The folder of the page, from which it links to reports; without it there are no links.

    Returns
    -------
    page : str
        The same for the same steps, byte by byte. Columns without any value are left out.
    """
    values = {column.name: {row.get(column.name) for row in steps.rows} for column in COLUMNS}
    common = [column for column in COLUMNS[1:] if column.text is None and len(steps.rows) > 1
              and len(values[column.name]) == 1 and None not in values[column.name]]  # fmt: skip
    columns = [c for c in COLUMNS if c not in common and values[c.name] != {None}]
    heads = [{"title": column.title, "number": column.text is not None} for column in columns]
    rows = [[[row.get(c.name), c.cell(row.get(c.name))] for c in columns] for row in steps.rows]
    for row, cells in zip(steps.rows, rows, strict=True):
        if folder is not None and row.get("report") is not None:
            cells[0].append(quote(os.path.relpath(row["report"], folder)))
    names = [column.name for column in columns]
    charts = [[names.index(x), names.index(y), more_x, y == "tokens_per_s"]
              for x, y, more_x in CHARTS if x in names and y in names]  # fmt: skip
    data = {"columns": heads, "rows": rows, "charts": charts}
    shared = [f"{column.title}: {column.cell(steps.rows[0][column.name])}" for column in common]
    return render("results.html.j2", title=title, count=len(steps.rows), skipped=steps.skipped,
                  shared=shared, data=data)  # fmt: skip

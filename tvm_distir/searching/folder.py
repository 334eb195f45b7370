# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The folder of a search: rows and plans as they are found, for a later search to go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..plan import Plan
from ..reading import write_whole
from .candidates import Candidate
from .result import Row, SearchResult

SETTINGS = "search.json"
ROWS = "rows.jsonl"


class Folder:
    """Rows and plans on disk.

    Parameters
    ----------
    path : Path
        An existing folder.
    settings : mapping
        All that prices depend on; a search goes on only with equal ones.
    resume : bool
        Whether to go on with what stands there.

    Raises
    ------
    UsageError
        DIST0151 where the folder has a search with other settings, or one although ``resume`` is
        not asked for; DIST0153 where it cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.path, self.settings = path, dict(settings)
        self._known: dict[str, dict[str, Any]] = {}
        rows = path / ROWS
        if rows.exists():
            if not resume:
                raise self._other("holds a search already", "Say --resume, or name another folder.")
            self._read(rows)
        elif resume:
            raise self._other(f"holds no search: {ROWS} is missing", "Leave out --resume.")
        else:
            self._write(rows, json.dumps({"settings": self.settings}) + "\n")

    def _other(self, what: str, remedy: str) -> UsageError:
        return UsageError("DIST0151", f"{self.path} {what}", place="-o", remedy=remedy)

    def _read(self, rows: Path) -> None:
        lines = rows.read_text().splitlines()
        try:
            head = json.loads(lines[0])["settings"]
            found = [json.loads(line) for line in lines[1:]]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._other(
                f"has a {ROWS} that cannot be read ({error})", "Name another folder."
            ) from error
        if head != self.settings:
            differ = sorted(
                k for k in {*head, *self.settings} if head.get(k) != self.settings.get(k)
            )
            raise self._other(
                f"holds a search with other settings ({', '.join(differ)})",
                "Give the same ones, or name another folder: prices are not used again.",
            )
        self._known = {row["key"]: row for row in found}

    def known(self, candidate: Candidate) -> tuple[Row, Plan | None] | None:
        """The row of a candidate, and its plan."""
        data = self._known.get(candidate.key)
        if data is None:
            return None
        fields = (
            "state",
            "least_s",
            "price_s",
            "gap",
            "time_s",
            "peak_bytes",
            "why",
            "likely_s",
            "needs_bytes",
            "hidden",
            "compute_s",
            "exposed_comm_s",
        )
        row = Row(candidate, **{key: data[key] for key in fields if key in data})
        plan = self._plan(candidate)
        return row, Plan.load(plan) if plan.exists() else None

    def add(self, row: Row, plan: Plan | None) -> None:
        """Write the plan of a candidate, then its row."""
        if plan is not None:
            plan.save(self._plan(row.candidate))
        with open(self.path / ROWS, "a", encoding="utf-8") as file:
            file.write(json.dumps(row.to_dict()) + "\n")

    def finish(self, result: SearchResult) -> list[Path]:
        """Write the table, and the best plans by their place in it."""
        written = [self.path / SETTINGS]
        text = json.dumps({"settings": self.settings, **result.to_dict()}, indent=1) + "\n"
        self._write(written[0], text)
        for number, found in enumerate(result.plans, 1):
            written.append(self.path / f"{number}.plan.json")
            found.plan.save(written[-1])
        return written

    def _plan(self, candidate: Candidate) -> Path:
        digest = hashlib.sha256(candidate.key.encode()).hexdigest()[:12]
        return self.path / f"candidate-{digest}.plan.json"

    def _write(self, path: Path, text: str) -> None:
        """Write a file whole or not at all."""
        try:
            write_whole(path, text)
        except OSError as error:
            raise UsageError(
                "DIST0153",
                f"{path} cannot be written: {error.strerror or error}",
                place="-o",
                remedy="Name an existing folder that you may write to.",
            ) from error

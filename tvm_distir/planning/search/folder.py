# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Store rows and plans of a search in a folder, so that a later search can resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tvm_distir.core.plan import Plan
from tvm_distir.support import OutputRecord, UsageError, write_atomically

from .candidate_row import SOLVED, CandidateRow
from .candidates import Candidate
from .result import SearchResult

SETTINGS = "search.json"
ROWS = "rows.jsonl"
_WRITTEN = (SETTINGS, "[0-9]*.plan.json")
"""Files that the end of a search replaces."""


class Folder:
    """Rows and plans on disk.

    Parameters
    ----------
    path : Path
        The path, which is created with the first row or the table: a search that fails before
        leaves nothing.
    settings : mapping
        The settings that costs depend on; a search resumes only with equal settings.
    resume : bool
        Whether to continue from what the folder contains.
    force : bool
        Whether to replace files that are not of a search, and a search that is not gone on with.

    Raises
    ------
    OutputError
        DIST0160 where the folder has a table or plans that no search wrote.
    UsageError
        DIST0151 where the folder has a search with other settings, or a search that ended although
        ``resume`` is not asked for (a search that failed without a plan is no hindrance); DIST0153
        where it cannot be written.
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], *, resume: bool, force: bool = False
    ) -> None:
        self.path, self.settings = path, dict(settings)
        self._known: dict[str, dict[str, Any]] = {}
        self._begun = False
        if not force:
            OutputRecord(path).check(_WRITTEN, "-o")
        rows = path / ROWS
        if rows.exists() and not (force and not resume):
            self._read(rows, resume)
        elif resume:
            raise self._other(f"contains no search: {ROWS} is missing", "Remove --resume.")

    def _other(self, problem: str, remedy: str) -> UsageError:
        return UsageError("DIST0151", f"{self.path} {problem}", location="-o", remedy=remedy)

    def _read(self, rows: Path, resume: bool) -> None:
        """Take the rows of a search before.

        One that failed left no table: it is gone on with, and begun anew under other settings if
        it has no plan.
        """
        try:
            lines = rows.read_text(encoding="utf-8").splitlines()
            head = json.loads(lines[0])["settings"]
            rows_by_key = {row["key"]: row for row in map(json.loads, lines[1:])}
            failed = not (self.path / SETTINGS).exists()
            futile = failed and not any(row["state"] == SOLVED for row in rows_by_key.values())
        except (OSError, IndexError, KeyError, TypeError, ValueError) as error:
            raise self._other(
                f"has a {ROWS} that cannot be read ({error})", "Give another folder."
            ) from error
        if head != self.settings:
            if futile:
                return
            differ = sorted(
                k for k in {*head, *self.settings} if head.get(k) != self.settings.get(k)
            )
            raise self._other(
                f"contains a search with other settings ({', '.join(differ)})",
                "Use the same settings, give another folder, or start again with --force.",
            )
        if not (resume or failed):
            raise self._other(
                "already contains a search",
                "Pass --resume, give another folder, or start again with --force.",
            )
        self._known, self._begun = rows_by_key, True

    def _begin(self) -> None:
        """Make the folder, and the file of rows."""
        if not self._begun:
            self._begun = True
            try:
                self.path.mkdir(exist_ok=True)
            except OSError as error:
                raise _unwritable(self.path, error) from error
            self._write(self.path / ROWS, json.dumps({"settings": self.settings}) + "\n")

    def known(self, candidate: Candidate) -> tuple[CandidateRow, Plan | None] | None:
        """Return the row of a candidate, and its plan."""
        data = self._known.get(candidate.key)
        if data is None:
            return None
        known = {field.name for field in fields(CandidateRow)} & data.keys()
        row = CandidateRow(candidate, **{key: data[key] for key in known})
        plan = self._plan(candidate)
        return row, Plan.load(plan) if plan.exists() else None

    def add(self, row: CandidateRow, plan: Plan | None) -> None:
        """Write the plan of a candidate, then its row."""
        self._begin()
        if plan is not None:
            plan.save(self._plan(row.candidate))
        with open(self.path / ROWS, "a", encoding="utf-8") as file:
            file.write(json.dumps(row.to_dict()) + "\n")

    def finish(self, result: SearchResult) -> list[Path]:
        """Write the table, and the best plans by their place in it."""
        self._begin()
        record = OutputRecord(self.path)
        old = record.matching(_WRITTEN)
        files = [self.path / SETTINGS]
        text = json.dumps({"settings": self.settings, **result.to_dict()}, indent=1) + "\n"
        self._write(files[0], text)
        for number, plan in enumerate(result.plans, 1):
            files.append(self.path / f"{number}.plan.json")
            plan.plan.save(files[-1])
        names = [path.name for path in files]
        removed = [name for name in old if name not in names]
        for name in removed:
            (self.path / name).unlink()
        record.forget(removed)
        record.add(names)
        return files

    def _plan(self, candidate: Candidate) -> Path:
        digest = hashlib.sha256(candidate.key.encode()).hexdigest()[:12]
        return self.path / f"candidate-{digest}.plan.json"

    def _write(self, path: Path, text: str) -> None:
        """Write a file completely or not at all."""
        try:
            write_atomically(path, text)
        except OSError as error:
            raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        "DIST0153", f"{path} cannot be written: {error.strerror or error}",
        location="-o", remedy="Give an existing, writable folder.",
    )  # fmt: skip

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the rows of a sweep to a file from which a later sweep can resume."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_distir.support import UsageError, write_atomically

SETTINGS = ".sweep.json"
"""The suffix of the file beside the rows that records what they depend on."""


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class CsvOutput:
    """CSV file of rows.

    Parameters
    ----------
    path : Path
    settings : mapping
        The settings that predictions depend on beside their rows; a sweep resumes only with equal
        settings.
    header : sequence of str
        Names of all columns.
    keys : int
        The number of columns that are the configuration.
    resume : bool
        Whether to continue from what the file contains.

    Raises
    ------
    UsageError
        DIST0151 where the file has rows of other settings or columns, or some although ``resume``
        is not asked for; DIST0153 where it cannot be written.
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], header: Sequence[str], keys: int, *,
        resume: bool,
    ) -> None:  # fmt: skip
        self.path, self.header, self.keys = path, list(header), keys
        self.settings = {**settings, "columns": self.header}
        self.beside = path.with_name(path.name + SETTINGS)
        self.known: dict[tuple[str, ...], list[str]] = {}
        if resume:
            self._read()
        elif self.beside.exists():
            raise self._other("already contains a sweep", "Pass --resume, or give another file.")
        else:
            self._write(self.beside, json.dumps(self.settings, indent=1) + "\n")
            self._write(self.path, csv_text([self.header]))

    def _other(self, problem: str, remedy: str) -> UsageError:
        return UsageError("DIST0151", f"{self.path} {problem}", location="-o", remedy=remedy)

    def _read(self) -> None:
        try:
            settings = json.loads(self.beside.read_text(encoding="utf-8"))
            text = self.path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise self._other(
                f"contains no sweep to resume ({error})", "Remove --resume."
            ) from error
        if settings != self.settings:
            current = self.settings
            differ = sorted(k for k in {*settings, *current} if settings.get(k) != current.get(k))
            raise self._other(
                f"contains a sweep with other settings ({', '.join(differ)})",
                "Use the same settings, or give another file: predictions are not reused.",
            )
        complete = text[: text.rfind("\n") + 1]  # an interrupted write leaves part of a line
        rows = list(csv.reader(io.StringIO(complete)))
        if not rows or rows[0] != self.header:
            raise self._other("has other columns", "Remove --resume, or give another file.")
        for row in rows[1:]:
            if len(row) == len(self.header):
                self.known[tuple(row[: self.keys])] = row[self.keys :]
        if len(complete) != len(text):
            self._write(self.path, complete)

    def add(self, rows: Iterable[Sequence[object]]) -> None:
        """Append rows."""
        text = csv_text(rows)
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise self._fault(self.path, error) from error

    def finish(self, rows: Iterable[Sequence[object]]) -> None:
        """Write the rows anew, in their order."""
        self._write(self.path, csv_text([self.header, *rows]))

    def _fault(self, path: Path, error: OSError) -> UsageError:
        return UsageError(
            "DIST0153", f"{path} cannot be written: {error.strerror or error}", location="-o",
            remedy="Give a path in an existing, writable folder.",
        )  # fmt: skip

    def _write(self, path: Path, text: str) -> None:
        """Write a file completely or not at all."""
        try:
            write_atomically(path, text)
        except OSError as error:
            raise self._fault(path, error) from error

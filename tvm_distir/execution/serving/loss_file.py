# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Append the losses of a run to a file as they come, so that a job that is killed leaves them."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path

from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError, OutputError, write_atomically


class LossFile:
    """A CSV file with the outputs of a single number of each step.

    Parameters
    ----------
    path : Path
    first_step : int
        The number of steps that are done; rows of later steps are removed.
    is_resumed : bool
        Whether the run continues another one, whose rows stay.

    Raises
    ------
    OutputError
        DIST0160 where there is a file, and the run is a new one.
    EngineError
        DIST0641 for a file that has no steps, DIST0642 for one that cannot be written.
    """

    def __init__(self, path: Path, first_step: int, is_resumed: bool) -> None:
        self._path = path
        if path.exists() and not is_resumed:
            problem = "it has the losses of another run"
            remedy = "Continue that run with --resume, or give another file."
            raise OutputError("DIST0160", problem, location=str(path), remedy=remedy)
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            rows = [*lines[:1], *(x for x in lines[1:] if int(x.split(",")[0]) <= first_step)]
            write_atomically(path, "".join(f"{row}\n" for row in rows))
        except OSError as error:
            raise self._unwritable(error) from error
        except ValueError as error:
            problem, remedy = f"it has no losses by step: {error}", "Give another file."
            raise EngineError("DIST0641", problem, location=str(path), remedy=remedy) from error

    def add(self, step: int, outputs: Mapping[int, Array]) -> None:
        """Append the row of a step, and bring it to the disk."""
        scalars = {f"output{i}": a.item() for i, a in outputs.items() if a.size == 1}
        try:
            with open(self._path, "a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if file.tell() == 0:
                    writer.writerow(["step", *scalars])
                writer.writerow([step, *(repr(value) for value in scalars.values())])
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> EngineError:
        problem = f"it cannot be written: {error.strerror or error}"
        remedy = "Free disk space, or give another file."
        return EngineError("DIST0642", problem, location=str(self._path), remedy=remedy)

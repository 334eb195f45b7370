# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cache programs on disk, until a source that they depend on changes."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

from tvm_distir.performance import Program
from tvm_distir.support import CACHE, CacheFile, sources_digest

_DOWNSTREAM = (
    "interface",
    "performance/fusion",
    "performance/memory",
    "performance/simulation",
    "performance/traces",
    "planning/calibration",
)
"""Folders that do not change what is exported."""


def kept_program(
    subject: object, make: Callable[[], Program], folder: str | Path | None = None
) -> Program:
    """Return the program that ``make`` gives, read from disk where it was made before.

    Parameters
    ----------
    subject : object
        An object whose ``repr`` identifies all that the program depends on, except for the sources
        of the package.
    make : callable
    folder : str or Path, optional
        None: :data:`CACHE`.
    """
    key = hashlib.sha256(repr((sources_digest(_DOWNSTREAM), subject)).encode())
    path = Path(folder or CACHE) / "programs" / f"{key.hexdigest()[:32]}.json.gz"
    file = CacheFile(path)
    program = file.read(lambda data: Program.from_json(gzip.decompress(data).decode()))
    if program is None:
        program = make()
        file.write(gzip.compress(program.to_json().encode(), 4))
    return program

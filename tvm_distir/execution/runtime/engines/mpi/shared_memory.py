# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Unlink the names of MPICH's shared memory early."""

from __future__ import annotations

import re
from pathlib import Path

_MAPS = Path("/proc/self/maps")
SEGMENT = re.compile(r"/dev/shm/mpich_shm_\w+")
"""The name of a piece of MPICH's shared memory."""


def mapped_segments(maps: Path = _MAPS) -> set[str]:
    """Return the names of MPICH's shared memory that ``/proc/<pid>/maps`` lists.

    Empty where the file cannot be read: not Linux, or the process has ended.
    """
    try:
        return set(SEGMENT.findall(maps.read_text(encoding="utf-8")))
    except OSError:
        return set()


def unlink_segments() -> None:
    """Unlink MPICH's shared memory, which all processes of this host have opened.

    MPICH unlinks it when MPI ends; a job that is aborted or killed would leave it behind.
    """
    for name in sorted(mapped_segments()):
        Path(name).unlink(missing_ok=True)

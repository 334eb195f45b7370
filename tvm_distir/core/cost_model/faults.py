# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Locate the files of systems, devices and networks, and make the errors of their content."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tvm_distir.support import Faults, HardwareError, nearest


def wrong(place: str, problem: str, remedy: str) -> HardwareError:
    """Make the error of a wrong value, of a key that is missing, or of an unknown key."""
    return HardwareError("DIST0703", problem, place=place, remedy=remedy)


def no_json(place: str, problem: str, remedy: str) -> HardwareError:
    """Make the error of a file that is not JSON."""
    return HardwareError("DIST0702", problem, place=place, remedy=remedy)


def faults_of(place: str) -> Faults:
    """Make a collector for the faults of a file, which keep their codes."""
    return Faults(place, wrong(place, "the file has several faults", ""))


def known_file(
    name_or_path: str | Path, folder: Path, names: Sequence[str], absent: str, place: str
) -> Path:
    """Return the path of a file that comes with the package, or that is given by its path.

    Parameters
    ----------
    name_or_path : str or Path
    folder : Path
        The folder of the package with the JSON files of ``names``.
    names : sequence of str
    absent : str
        What there is not, before the name: ``there is no device``.
    place : str
        The place of the error.

    Raises
    ------
    HardwareError
        DIST0701 for a name that is none.
    """
    name = str(name_or_path)
    if name in names:
        return folder / f"{name}.json"
    if os.path.exists(name):
        return Path(name_or_path)
    raise HardwareError(
        "DIST0701",
        f"{absent} {name!r}, nor a file of that name",
        place=place,
        remedy=f"{nearest(name, names)} Available: {', '.join(names)}.",
    )

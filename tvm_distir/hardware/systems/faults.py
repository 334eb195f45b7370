# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Locate the files of systems, devices and networks, and make the errors of their content."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tvm_distir.support import Faults, HardwareError, closest


def wrong(location: str, problem: str, remedy: str) -> HardwareError:
    """Make the error of a wrong value, of a key that is missing, or of an unknown key."""
    return HardwareError("DIST0703", problem, location=location, remedy=remedy)


def no_json(location: str, problem: str, remedy: str) -> HardwareError:
    """Make the error of a file that is not JSON."""
    return HardwareError("DIST0702", problem, location=location, remedy=remedy)


SLOWEST = "Name the slowest of them, with the least memory: no stage of the step takes longer."


def unequal(location: str, problem: str, remedy: str = SLOWEST) -> HardwareError:
    """Make the error of devices of several types in one job."""
    return HardwareError("DIST0706", problem, location=location, remedy=remedy)


def faults_of(location: str) -> Faults:
    """Make a collector for the faults of a file, which keep their codes."""
    return Faults(location, wrong(location, "the file has several faults", ""))


def known_file(
    name_or_path: str | Path, folder: Path, names: Sequence[str], absent: str, location: str
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
    location : str
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
    raise unknown_name(name, names, f"{absent} {name!r}, nor a file of that name", location)


def unknown_name(
    name: str,
    names: Sequence[str],
    problem: str,
    location: str,
    aliases: Iterable[str] = (),
    remedy: str = "",
) -> HardwareError:
    """Make the error (DIST0701) of an unknown name, which lists ``names`` and suggests one.

    A name of another model number is not suggested: for ``v100``, not ``h100``.

    Parameters
    ----------
    name : str
    names : sequence of str
        What is listed.
    problem, location : str
    aliases : iterable of str
        More names that can be suggested.
    remedy : str
        What else can be done.
    """
    near = closest(name, [known for known in (*names, *aliases) if _same_model(name, known)])
    suggestion = "" if near is None else f'Did you mean "{near}"? '
    remedy = f"{suggestion}Available: {', '.join(names)}. {remedy}"
    return HardwareError("DIST0701", problem, location=location, remedy=remedy)


_MODEL = re.compile(r"([a-z]*)[-_ ]?([0-9]+)")
"""The model number of a device in a name: ``h100`` in ``dgx-h100``, ``rtx-4090``."""


def _same_model(name: str, known: str) -> bool:
    """Return whether two names have the same model number, as far as both are written."""
    first, second = _MODEL.search(name.lower()), _MODEL.search(known.lower())
    if first is None or second is None:
        return True
    letters, digits = first.groups()
    known_letters, known_digits = second.groups()
    return letters == known_letters and (
        known_digits.startswith(digits) or digits.startswith(known_digits)
    )

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Refuse untried versions of TVM and of its FFI before importing them.

The ranges are those of ``pyproject.toml`` (a test compares them); it gives the reasons.
``docs/dev/new_tvm.md`` says how a version gets into them.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from importlib import metadata

from tvm_distir.support.errors.tree import DependencyError

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?P<early>[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?"
    r"(?:[-_.]?post[-_.]?(?P<post>\d*))?"
    r"(?P<dev>[-_.]?dev[-_.]?\d*)?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)

_Key = tuple[tuple[int, ...], int]
"""Release without trailing zeros, and number of the post-release (-1 for none)."""


@dataclass(frozen=True)
class VersionRange:
    """A range of versions of a distribution.

    Parameters
    ----------
    distribution : str
        The name on the package index.
    specifier : str
        The range as pip reads it.
    lowest : str
        The first version in the range.
    below : str
        The first version past the range.
    tried : tuple of str
        The versions in the range that the tests have passed with.
    code : str
        The code of the error for another version.
    """

    distribution: str
    specifier: str
    lowest: str
    below: str
    tried: tuple[str, ...]
    code: str

    @property
    def requirement(self) -> str:
        """Return the requirement for pip."""
        return f"{self.distribution}{self.specifier}"


PINS = (
    VersionRange(
        distribution="apache-tvm",
        specifier=">=0.26,<0.28",
        lowest="0.26",
        below="0.28",
        tried=("0.26.0", "0.27.0.post1"),
        code="DIST0101",
    ),
    VersionRange(
        distribution="apache-tvm-ffi",
        specifier=">=0.1.14.post0,<0.1.15",
        lowest="0.1.14.post0",
        below="0.1.15",
        tried=("0.1.14.post1",),
        code="DIST0102",
    ),
)

UNTRIED_VARIABLE = "TVM_DISTIR_UNTRIED_TVM"
"""Environment variable that lets newer versions be imported with a warning: 1 or 0."""

REMEDY = "pip install " + " ".join(f'"{pin.requirement}"' for pin in PINS)


def _key(version: str) -> _Key | None:
    """Return the sort key of a version; None for a pre-release or an invalid version."""
    match = _VERSION.fullmatch(version.strip())
    if match is None or match["early"] or match["dev"]:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while release and release[-1] == 0:
        release.pop()
    post = match["post"]
    return tuple(release), -1 if post is None else int(post or 0)


def accepts(pin: VersionRange, version: str) -> bool:
    """Tell whether a version is in the range of a pin.

    Pre-releases and development versions are in no range: their interface may be that of the
    version before.

    Examples
    --------
    >>> accepts(PINS[0], "0.27.0.post1"), accepts(PINS[0], "0.28.0")
    (True, False)
    """
    key, lowest, below = _key(version), _key(pin.lowest), _key(pin.below)
    if key is None or lowest is None or below is None:
        return False
    return lowest <= key < below


def is_newer(pin: VersionRange, version: str) -> bool:
    """Tell whether a version is past the range of a pin, also a development version of one."""
    match, below = _VERSION.fullmatch(version.strip()), _key(pin.below)
    if match is None or below is None:
        return False
    return tuple(int(part) for part in match["release"].split(".")) >= below[0]


class UntriedVersionWarning(UserWarning):
    """The package was imported with a version of TVM or of its FFI that it was not tried with."""


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_versions() -> None:
    """Refuse to import without the versions that the plugin supports.

    Where :data:`UNTRIED_VARIABLE` is 1, newer ones get an :class:`UntriedVersionWarning`.

    Raises
    ------
    DependencyError
        DIST0101 for apache-tvm, DIST0102 for apache-tvm-ffi; the remedy is a pip command.
    """
    untried = os.environ.get(UNTRIED_VARIABLE, "") not in ("", "0")
    for pin in PINS:
        version = _installed(pin.distribution)
        if version is None:
            raise DependencyError(
                pin.code, f"{pin.distribution} is not installed", location="import", remedy=REMEDY
            )
        if accepts(pin, version):
            continue
        newer = is_newer(pin, version)
        tried = f"{pin.requirement} (tried: {', '.join(pin.tried)})"
        if newer and untried:
            warnings.warn(
                f"{pin.distribution} {version} is untried: tvm_distir requires {tried}. Run its "
                "quick tests first (docs/dev/new_tvm.md).",
                UntriedVersionWarning,
                stacklevel=3,
            )
            continue
        raise DependencyError(
            pin.code,
            f"{pin.distribution} {version} is installed, but tvm_distir requires {tried}",
            location="import",
            remedy=REMEDY + (f", or set {UNTRIED_VARIABLE}=1 to try it" if newer else ""),
        )

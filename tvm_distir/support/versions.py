# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Refuse untried versions of TVM and of its FFI before importing them.

The ranges are those of ``pyproject.toml`` (a test compares them); it gives the reasons.
``docs/dev/new_tvm.md`` says how a version gets into them.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from tvm_distir.support.errors.tree import DependencyError


@dataclass(frozen=True)
class VersionRange:
    """A range of versions of a distribution.

    Parameters
    ----------
    distribution : str
        The name on the package index.
    specifier : str
        The range as pip reads it.
    tried : tuple of str
        The versions in the range that the tests have passed with.
    code : str
        The code of the error for another version.
    """

    distribution: str
    specifier: str
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
        tried=("0.26.0", "0.27.0.post1"),
        code="DIST0101",
    ),
    VersionRange(
        distribution="apache-tvm-ffi",
        specifier=">=0.1.14.post0,<0.1.15",
        tried=("0.1.14.post1",),
        code="DIST0102",
    ),
)

UNTRIED_VARIABLE = "TVM_DISTIR_UNTRIED_TVM"
"""Environment variable that lets newer versions be imported with a warning: 1 or 0."""

REMEDY = "pip install " + " ".join(f'"{pin.requirement}"' for pin in PINS)


def _parsed(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None


def accepts(pin: VersionRange, version: str) -> bool:
    """Tell whether a version is in the range of a pin.

    Pre-releases and development versions are in no range: their interface may be that of the
    version before.

    Examples
    --------
    >>> accepts(PINS[0], "0.27.0.post1"), accepts(PINS[0], "0.28.0")
    (True, False)
    """
    parsed = _parsed(version)
    if parsed is None:
        return False
    return SpecifierSet(pin.specifier).contains(parsed, prereleases=False)


def is_newer(pin: VersionRange, version: str) -> bool:
    """Tell whether a version is past the range of a pin, also a development version of one."""
    parsed = _parsed(version)
    ends = [Version(x.version) for x in SpecifierSet(pin.specifier) if x.operator == "<"]
    return parsed is not None and all(parsed.release >= end.release for end in ends)


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

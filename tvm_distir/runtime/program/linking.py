# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Shared libraries of compiled modules: they need a C compiler, which links them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ...errors import DependencyError

COMPILER_VARIABLE = "CXX"
_COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")


def find_compiler() -> str | None:
    """The C++ or C compiler of this machine, None without one. ``CXX`` decides when it is set."""
    named = os.environ.get(COMPILER_VARIABLE, "")
    for name in (named, *_COMPILERS):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def need_compiler() -> str:
    """The compiler, or DIST0112."""
    found = find_compiler()
    if found is None:
        raise DependencyError(
            "DIST0112",
            f"there is no C compiler (looked for {', '.join(_COMPILERS)})",
            place="deploy",
            remedy=f"Install one (Debian: apt install g++), or name it in {COMPILER_VARIABLE}. "
            "Only writing libraries needs it, running them does not.",
        )
    return found


def export_library(executable: Any, path: Path, compiler: str) -> None:
    """Write a compiled module as a shared library.

    Parameters
    ----------
    executable : relax.VMExecutable
    path : Path
        Ends with ``.so``.
    compiler : str
        Path of the compiler that links.

    Raises
    ------
    DependencyError
        DIST0112 when linking fails.
    """
    try:
        executable.export_library(str(path), cc=compiler)
    except RuntimeError as err:
        lines = [line.strip() for line in str(err).splitlines() if line.strip()]
        raise DependencyError(
            "DIST0112",
            f"{compiler} cannot link the library: {' '.join(lines[-2:])[:300] or 'no message'}",
            place=str(path),
            remedy=f"Name another compiler in {COMPILER_VARIABLE}.",
        ) from err

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Link shared libraries of compiled modules by a C compiler."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_distir.support import DependencyError

if TYPE_CHECKING:
    from tvm import relax

COMPILER_VARIABLE = "CXX"
_PROBE_BYTES = 1 << 20
"""A disk that takes so much has not stopped a linker."""
_COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")


def find_compiler() -> str | None:
    """Return the C++ or C compiler of this machine, or None; ``CXX`` overrides the search."""
    for name in (os.environ.get(COMPILER_VARIABLE, ""), *_COMPILERS):
        compiler = shutil.which(name) if name else None
        if compiler:
            return compiler
    return None


def need_compiler() -> str:
    """Return the compiler, or DIST0112."""
    compiler = find_compiler()
    if compiler is None:
        raise DependencyError(
            "DIST0112",
            f"there is no C compiler (looked for {', '.join(_COMPILERS)})",
            location="deploy",
            remedy=f"Install one (Debian: apt install g++), or name it in {COMPILER_VARIABLE}. "
            "It is needed to write libraries, not to run them.",
        )
    return compiler


def export_library(executable: relax.VMExecutable, path: Path, compiler: str) -> None:
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
    OSError
        Where a disk is full.
    """
    size_bytes = 0
    try:
        with _workspace(executable) as (folder, objects):
            try:
                executable.export_library(str(path), cc=compiler, workspace_dir=folder)
            finally:
                size_bytes = sum(os.fstat(handle).st_size for handle in objects)
    except RuntimeError as err:
        check_room(path.parent, size_bytes)
        lines = [line.strip() for line in str(err).splitlines() if line.strip()]
        raise DependencyError(
            "DIST0112",
            f"{compiler} cannot link the library: {' '.join(lines[-2:])[:300] or 'no message'}",
            location=str(path),
            remedy=f"Name another compiler in {COMPILER_VARIABLE}.",
        ) from err


def check_room(folder: Path, size_bytes: int = 0) -> None:
    """Raise OSError if ``folder`` or the temporary folder has no space for a file of that size."""
    for where in (folder, None):
        with tempfile.TemporaryFile(dir=where) as probe:
            probe.write(bytes(max(_PROBE_BYTES, size_bytes)))


@contextmanager
def _workspace(executable: relax.VMExecutable) -> Iterator[tuple[str, list[int]]]:
    """Yield a folder whose object files are in memory, and their descriptors.

    LLVM ends the process where it cannot write an object, so none goes to a disk.
    """
    pending, count = [executable.mod], 0
    while pending:
        count += 1
        pending = [*pending[:-1], *pending[-1].imports]
    with tempfile.TemporaryDirectory(prefix="tvm-distir-") as folder:
        objects: list[int] = []
        try:
            for name in (*(f"lib{i}.o" for i in range(count)), "devc.o"):
                if hasattr(os, "memfd_create"):  # Linux
                    objects.append(os.memfd_create(name))
                    os.symlink(f"/proc/{os.getpid()}/fd/{objects[-1]}", Path(folder) / name)
            yield folder, objects
        finally:
            for handle in objects:
                os.close(handle)

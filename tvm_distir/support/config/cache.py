# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Manage the cache folder and its files, none of which can make a run fail.

A file that cannot be read, or whose content is refused, counts as missing; a file that cannot be
written is skipped. Either is reported once, in a warning that names the file.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tvm_distir.support.errors.tree import DistIRError

from .atomic import write_atomically
from .files import file_fault

T = TypeVar("T")


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvm-distir"
"""The folder of cached imports, programs and kernel times."""

_FAULTS = (OSError, EOFError, ValueError, TypeError, RecursionError, zlib.error, DistIRError)
"""Errors of reading a broken file; ``decode`` raises ValueError for invalid content."""


@functools.cache
def sources_digest(skipped: tuple[str, ...]) -> str:
    """Return the SHA-256 of the package's Python sources, on which cached results depend.

    Parameters
    ----------
    skipped : tuple of str
        Beginnings of paths, from the package on, of sources without influence on the results.
    """
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(skipped):
            digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


class CacheFile:
    """A file of results that take long to compute and can be computed again.

    Parameters
    ----------
    path : Path
        The path, whose folder is made when the file is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._warned = False

    def read(self, decode: Callable[[bytes], T]) -> T | None:
        """Return the content as ``decode`` reads it; None if there is no usable file."""
        try:
            if not os.path.lexists(self.path):
                return None
            return self._decoded(decode)
        except _FAULTS as error:
            self._warn("cannot be used, and its content is recomputed", error)
            return None

    def write(self, content: bytes) -> None:
        """Replace the content, completely or not at all."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, content)
        except OSError as error:
            self._warn("cannot be written, and nothing is cached", error)

    def update(self, decode: Callable[[bytes], T], merge: Callable[[T | None], bytes]) -> None:
        """Replace the content by the result of ``merge``; other processes wait meanwhile.

        ``merge`` is given None where there is no file that can be used.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path.with_name(f".{self.path.name}.lock"), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                try:
                    stored = self._decoded(decode)
                except _FAULTS:
                    stored = None
                write_atomically(self.path, merge(stored))
        except OSError as error:
            self._warn("cannot be written, and nothing is cached", error)

    def _decoded(self, decode: Callable[[bytes], T]) -> T:
        fault = file_fault(self.path)
        if fault is not None:
            raise OSError(fault)
        return decode(self.path.read_bytes())

    def _warn(self, problem: str, error: BaseException) -> None:
        if not self._warned:
            self._warned = True
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            warnings.warn(f"the cache file {self.path} {problem}: {why}", stacklevel=4)

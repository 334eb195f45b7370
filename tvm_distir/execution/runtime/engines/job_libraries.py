# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the libraries of programs to a folder of this process, for the processes of its jobs."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tvm_ffi

from tvm_distir.execution.runtime.program.io_layout import EntryFunction
from tvm_distir.execution.runtime.program.runnable import Runnable

_SIZE = 64


@dataclass(frozen=True, eq=False)
class _StoredLibrary:
    program: Runnable
    function: str
    target: str
    path: Path

    def holds(self, program: Runnable, function: str) -> bool:
        """Return whether this is the library of a function of a program, for the same target."""
        if (self.function, self.target) != (function, program.target):
            return False
        if self.program.fingerprint != program.fingerprint:
            return False
        # The fingerprint of IR is TVM's hash of it, which is that of other modules, too.
        mods = [getattr(p, "mod", None) for p in (self.program, program)]
        return None in mods or bool(tvm_ffi.structural_equal(*mods))


class LibraryFiles:
    """Files by program, entry and target in scope; the least recently used are deleted first.

    Parameters
    ----------
    size : int
        The maximum number of stored files.
    """

    def __init__(self, size: int = _SIZE) -> None:
        self._size = size
        self._recent: list[_StoredLibrary] = []  # the most recently used last
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._numbers = itertools.count()

    def path(self, program: Runnable, entry: EntryFunction) -> Path:
        """Return the file from which processes load an entry; no path is used for two programs.

        Raises
        ------
        EngineError
            DIST0606 when TVM cannot compile the program.
        DependencyError
            DIST0112 when the library cannot be linked.
        """
        name = entry.function
        library = next((k for k in self._recent if k.holds(program, name)), None)
        if library is None:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="tvm_distir_")
            folder = Path(self._folder.name) / str(next(self._numbers))
            folder.mkdir()
            library = _StoredLibrary(program, name, program.target, program.save(entry, folder))
            for dropped in self._recent[: max(0, len(self._recent) + 1 - self._size)]:
                self._recent.remove(dropped)
                if Path(self._folder.name) in dropped.path.parents:
                    shutil.rmtree(dropped.path.parent, ignore_errors=True)
        else:
            self._recent.remove(library)
        self._recent.append(library)
        return library.path


LIBRARIES = LibraryFiles()
"""The libraries of all runs of this process."""

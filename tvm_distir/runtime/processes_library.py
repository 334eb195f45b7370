# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Programs written to a folder of this process, for its workers to load."""

from __future__ import annotations

import collections
import itertools
import shutil
import tempfile
from pathlib import Path

from .layout import Entry
from .runnable import Runnable

_SIZE = 64


class LibraryCache:
    """Files by program and entry; the least recently used are deleted first.

    Parameters
    ----------
    size : int
        How many are kept.
    """

    def __init__(self, size: int = _SIZE) -> None:
        self._size = size
        self._kept: collections.OrderedDict[tuple[str, str], Path] = collections.OrderedDict()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._numbers = itertools.count()

    def path(self, program: Runnable, entry: Entry) -> Path:
        """File from which a worker loads an entry; a path is never used for another program.

        Raises
        ------
        RuntimeError_
            DIST0606 when TVM cannot compile the program.
        EnvironmentError_
            DIST0112 when the library cannot be linked.
        """
        key = (program.fingerprint, entry.function)
        if key not in self._kept:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="tvm_distir_")
            # Never the same name twice: a worker does not load a path again.
            folder = Path(self._folder.name) / str(next(self._numbers))
            folder.mkdir()
            self._kept[key] = program.save(entry, folder)
            while len(self._kept) > self._size:
                _, dropped = self._kept.popitem(last=False)
                if Path(self._folder.name) in dropped.parents:
                    shutil.rmtree(dropped.parent, ignore_errors=True)
        self._kept.move_to_end(key)
        return self._kept[key]


LIBRARIES = LibraryCache()
"""The libraries of all runs of this process."""

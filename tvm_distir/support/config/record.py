# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Record which files of a folder this package wrote, so that no file of the user is replaced.

A folder of outputs holds an index of them, :data:`RECORD`: names with SHA-256 digests. A file of
any format is the package's while its content is as recorded; a file that was edited, or
that something else wrote, is the user's.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tvm_distir.support.errors.tree import OutputError

from .atomic import write_atomically

RECORD = ".tvm-distir.json"
_BLOCK_BYTES = 1 << 20
_SHOWN = 3


def digest_file(path: Path) -> tuple[int, str]:
    """Return the bytes and SHA-256 of a file."""
    state, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            state.update(block)
            size += len(block)
    return size, state.hexdigest()


class OutputRecord:
    """The record of a folder.

    Parameters
    ----------
    folder : Path
        The folder, which need not exist. A record that cannot be read is empty: all files are the
        user's then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[str, str] = {}
        try:
            files = json.loads((folder / RECORD).read_text(encoding="utf-8"))["files"]
            self.digests = {str(name): str(digest) for name, digest in files.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass

    def owns(self, name: str) -> bool:
        """Return whether a file is unchanged since this package wrote it."""
        path = self.folder / name
        try:
            return (
                name in self.digests and path.is_file() and self._digest(name) == self.digests[name]
            )
        except OSError:
            return False

    def check(self, patterns: Iterable[str], location: str) -> None:
        """Refuse to replace files of the user.

        Parameters
        ----------
        patterns : iterable of str
            Names of the files that are to be written, with ``*`` and ``?`` where they are not
            known yet.
        location : str
            The option that names the folder.

        Raises
        ------
        OutputError
            DIST0160.
        """
        foreign = [name for name in self._there(patterns) if not self.owns(name)]
        if foreign:
            more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
            raise OutputError(
                "DIST0160",
                f"{self.folder} holds {', '.join(foreign[:_SHOWN])}{more}, which tvm-distir did "
                "not write or which was edited since, and which would be replaced",
                location=location,
                remedy="Give another folder, or replace them with --force.",
            )

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """Return the files that this package wrote, by name."""
        return [name for name in self._there(patterns) if self.owns(name)]

    def forget(self, names: Iterable[str]) -> None:
        """Remove files from the record before they are deleted."""
        for name in names:
            self.digests.pop(name, None)

    def write(self, digests: Mapping[str, str], folder: Path | None = None) -> None:
        """Add files, and write the record into its folder, or into another folder."""
        self.digests.update(digests)
        files = dict(sorted(self.digests.items()))
        text = json.dumps({"schema_version": 1, "files": files}, indent=1) + "\n"
        write_atomically((folder or self.folder) / RECORD, text)

    def add(self, names: Iterable[str]) -> None:
        """Add files that were written, and write the record."""
        self.write({name: self._digest(name) for name in names})

    def _there(self, patterns: Iterable[str]) -> list[str]:
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        pattern_list = tuple(patterns)
        return [
            name for name in names if any(fnmatch.fnmatchcase(name, glob) for glob in pattern_list)
        ]

    def _digest(self, name: str) -> str:
        return digest_file(self.folder / name)[1]

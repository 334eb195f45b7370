# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write output files: checked before the work, and written completely or not at all.

No output takes the place of a file that the command reads, or of another output, however its
path is spelled. A file in a folder of outputs is replaced only if a command wrote it.
"""

from __future__ import annotations

import argparse
import glob
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tvm_distir.support import RECORD, OutputRecord, UsageError

from .help import mark_rare
from .output_files import Content, fill, is_regular, move_to, temporary_file
from .terminal import print_message


def _fault(path: Path, problem: str, option: str) -> UsageError:
    return UsageError(
        "DIST0153", f"{path} cannot be written: {problem}",
        location=option, remedy="Name a path in an existing, writable folder.",
    )  # fmt: skip


def _usable(path: str, option: str) -> Path:
    """Return the path; refuse an unusable path: a name too long, a circle of links (DIST0153)."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise _fault(Path(path), reason, option) from error
    return Path(path)


def _check_folder(folder: Path, path: Path, option: str) -> None:
    """Refuse a folder in which no file can be created."""
    if not folder.exists():
        raise _fault(path, f"the folder {folder} does not exist", option)
    if not folder.is_dir():
        raise _fault(path, f"{folder} is not a folder", option)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _fault(path, f"the folder {folder} is not writable", option)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:  # such as /proc, which tells root that it is writable
        reason = error.strerror or str(error)
        raise _fault(
            path, f"no file can be created in the folder {folder} ({reason})", option
        ) from error


def _overwrites(option: str, target: Path, other: str) -> UsageError:
    return UsageError(
        "DIST0151", f"{target} is read by the command ({other}), and would be overwritten",
        location=option, remedy="Name another path for the output.",
    )  # fmt: skip


def _same(path: Path, other: Path) -> bool:
    """Return whether two paths are the same existing file, also through links."""
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):
        return False


def _keys(target: Path) -> tuple[tuple[object, ...], ...]:
    """Return the keys of a file: its inode, if it exists, and its name in its folder."""
    keys: list[tuple[object, ...]] = [(str(target),)]
    if target.exists():
        status = target.stat()
        keys.append((status.st_dev, status.st_ino))
    elif target.parent.exists():
        folder = target.parent.stat()
        keys.append((folder.st_dev, folder.st_ino, target.name))
    return tuple(keys)


class Outputs:
    """The output files of a command.

    ``reserve*`` check a path before the long work and remember it, ``add`` gives it its content,
    and ``commit`` writes everything: first all files under temporary names beside their
    targets, then each is moved into its place. Where anything fails before the first move,
    nothing is left behind.

    Parameters
    ----------
    reads : mapping of str to path, optional
        What the command reads, files or folders, by the option that names it; None for an option
        that is not given.
    force : bool
        Whether files of a folder may be replaced that no command wrote.
    """

    def __init__(
        self, reads: Mapping[str, str | Path | None] | None = None, *, force: bool = False
    ) -> None:
        self._reads = {option: Path(path) for option, path in (reads or {}).items() if path}
        self._promised: dict[tuple[object, ...], str] = {}
        self._force = force
        self._folders: dict[Path, str] = {}
        self._named: set[Path] = set()
        self._content: list[tuple[Path, Content]] = []

    def reserve(self, path: str | None, option: str) -> Path | None:
        """Check that a file can be written at ``path``.

        Parameters
        ----------
        path : str or None
            As given on the command line; None when the option was not given.
        option : str
            The option's name, for messages.

        Raises
        ------
        UsageError
            DIST0153 for a path that cannot be written, DIST0151 for one that the command reads, or
            that is named twice.
        """
        if path is None:
            return None
        if not path:
            raise UsageError(
                "DIST0152", "the path is empty", location=option, remedy="Name a file."
            )
        if path == "-":
            problem = '"-" does not stand for standard output'
            remedy = "Use /dev/stdout for standard output, or ./- for a file of this name."
            raise UsageError("DIST0152", problem, location=option, remedy=remedy)
        target = _usable(path, option)
        if target.is_dir():
            raise _fault(target, "it is a folder", option)
        if target.exists() and not os.access(target, os.W_OK):
            raise _fault(target, "the file is not writable", option)
        if is_regular(target):
            target = Path(os.path.realpath(path))
            _check_folder(target.parent, target, option)
        self._claim(target, option)
        self._named.add(target)
        return target

    def reserve_folder(
        self, path: str | None, option: str, files: Iterable[str] = (), claims: Iterable[str] = ()
    ) -> Path | None:
        """Check that ``files`` can be written into the folder ``path``, which is made if missing.

        ``files`` are names, or patterns as ``*.json`` of names that are not known yet; ``claims``
        are names that no other output may have, and that something else writes. Errors as in
        :meth:`reserve`.

        Raises
        ------
        OutputError
            DIST0160 where one of them is there that no command wrote.
        """
        if path is None:
            return None
        if not path:
            raise UsageError(
                "DIST0152", "the path is empty", location=option, remedy="Name a folder."
            )
        folder = Path(os.path.realpath(_usable(path, option)))
        if folder.exists():
            _check_folder(folder, folder, option)
        else:
            _check_folder(folder.parent, folder, option)
        self._folders[folder] = option
        names = tuple(files)
        for target in (folder, *(folder / name for name in (*names, *claims))):
            self._claim(target, option)
        if not self._force:
            OutputRecord(folder).check(names, option)
        return folder

    def protect_folder(self, path: str, option: str) -> None:
        """Refuse (DIST0151) a folder that is emptied when it is written, and holds what is read."""
        folder = Path(os.path.realpath(_usable(path, option)))
        for other, read in self._reads.items():
            real = Path(os.path.realpath(read))
            if folder.is_dir() and any(_same(folder, path) for path in (real, *real.parents)):
                raise _overwrites(option, folder, other)

    def _claim(self, target: Path, option: str) -> None:
        if target.exists() and not (target.is_file() or target.is_dir()):
            return  # a device takes several outputs
        for other, read in self._reads.items():
            inside = target.is_file() and read.is_dir() and _same(target.parent, read)
            if inside or _same(target, read):
                raise _overwrites(option, target, other)
        keys = _keys(target)
        before = next((self._promised[key] for key in keys if key in self._promised), None)
        if before is not None:
            raise UsageError(
                "DIST0151", f"{before} and {option} both name {target}",
                location=option, remedy="Name two different files.",
            )  # fmt: skip
        self._promised.update(dict.fromkeys(keys, option))

    def add(self, path: Path | None, content: Content) -> None:
        """Set the content of a promised path; a path of None is ignored."""
        if path is None:
            return
        if not any(key in self._promised for key in _keys(path)):
            self._claim(path, "-o")
        self._content.append((path, content))

    def commit(self) -> list[Path]:
        """Write all files; return their paths in the order they were added."""
        if not self._force:
            for folder, option in self._folders.items():
                names = [
                    glob.escape(path.name)
                    for path, _ in self._content
                    if path.parent == folder and path not in self._named
                ]
                OutputRecord(folder).check(names, option)
        new_folders = [folder for folder in self._folders if not folder.exists()]
        ready: list[tuple[str, Path]] = []
        done = False
        where = Path()
        try:
            for where in new_folders:
                where.mkdir()
            for where, content in self._content:
                ready.append((temporary_file(where), where))
                fill(ready[-1][0], content)
            for temporary, where in ready:
                move_to(temporary, where)
            self._record()
            done = True
        except BrokenPipeError:  # not a fault: the reader wants no more
            raise
        except OSError as error:
            raise _fault(where, error.strerror or str(error), "output") from error
        finally:
            for temporary, _ in ready:
                if os.path.exists(temporary):
                    os.unlink(temporary)
            if not done:
                for folder in new_folders:
                    if folder.is_dir() and not any(folder.iterdir()):
                        folder.rmdir()
        return [path for path, _ in self._content]

    def write(self) -> None:
        """Write all outputs, and say what was written."""
        for path in self.commit():
            print_message(f"wrote {path}")

    def _record(self) -> None:
        """Record the files written to folders of outputs, or to folders with a record."""
        names: dict[Path, list[str]] = {}
        for path, _ in self._content:
            if path.parent in self._folders or (path.parent / RECORD).is_file():
                names.setdefault(path.parent, []).append(path.name)
        for folder, files in names.items():
            OutputRecord(folder).add(files)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option to replace files of the user."""
    about = "Replace files in the output folder that tvm-distir did not write."
    mark_rare(parser.add_argument("--force", action="store_true", help=about))

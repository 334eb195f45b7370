# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the repository itself look at: its files, and the modules of the package."""

from __future__ import annotations

import ast
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "tvm_distir"
_NOT_OURS = {".git", ".venv", "build", "dist", "out", "_build", "lib", "__pycache__"}


@dataclass(frozen=True)
class Module:
    """One Python file of the package.

    Attributes
    ----------
    path : Path
        Relative to the root of the repository.
    name : str
        As it is imported, e.g. ``tvm_distir.core.ir.mesh``.
    is_package : bool
        Whether it is an ``__init__.py``.
    tree : ast.Module
    """

    path: Path
    name: str
    is_package: bool
    tree: ast.Module


def _listed_by_git() -> list[Path] | None:
    """The files that git knows or would add; None where this is no checkout."""
    if not (ROOT / ".git").exists():
        return None
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if done.returncode != 0:
        return None
    return [Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name]


def _listed_by_walking() -> list[Path]:
    matches = []
    for folder, subfolders, files in os.walk(ROOT):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _NOT_OURS
            and not name.startswith(".venv-")
            and not name.endswith(("_cache", ".egg-info"))
        ]
        matches += [Path(folder, name).relative_to(ROOT) for name in files]
    return matches


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def files() -> list[Path]:
    """Every file of the repository, relative to its root, sorted."""
    listed = _listed_by_git()
    result = _listed_by_walking() if listed is None else listed
    result = sorted({path for path in result if (ROOT / path).is_file()})
    assert len(result) > 50, "the files of the repository were not found"
    return result


@pytest.fixture(scope="session")
def modules(files: list[Path]) -> list[Module]:
    """Every Python file of the package, parsed."""
    matches = []
    for path in files:
        if path.parts[0] != PACKAGE or path.suffix != ".py":
            continue
        words = [*path.parts[:-1], path.stem]
        is_package = path.stem == "__init__"
        name = ".".join(words[:-1] if is_package else words)
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))
        matches.append(Module(path, name, is_package, tree))
    assert len(matches) > 30, "the modules of the package were not found"
    return matches

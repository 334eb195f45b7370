# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The environment of processes that tests start, and programs that both sides import."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
"""The root of the repository."""


def child_environment(*before: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which a child imports what this process can import.

    Parameters
    ----------
    *before
        Folders from which the child imports before all others.
    **variables
        Environment variables that differ from those of this process.
    """
    folders = [*map(str, before), *(folder or "." for folder in sys.path), str(ROOT / "python")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **variables}


@functools.cache
def load_two_meshes() -> ModuleType:
    """Return ``examples/two_meshes.py`` as a module, the same one at every call."""
    spec = importlib.util.spec_from_file_location("two_meshes", ROOT / "examples/two_meshes.py")
    if spec is None or spec.loader is None:
        raise ImportError("examples/two_meshes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where TVMScript looks for the source
    spec.loader.exec_module(module)
    return module

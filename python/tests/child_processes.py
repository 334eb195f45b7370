# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The environment of processes that tests start, and programs that both sides import."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
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
def quick_python(**variables: str) -> str:
    """Return an interpreter whose processes begin with TVM and the package imported.

    It is for tests whose subject is not the start of a process: see ``process_server.py``, which
    lives as long as this process. Where the system has no such processes it is the usual one.

    Parameters
    ----------
    **variables
        Environment variables that are read when a process starts, of which the environment of
        each process must have the same values; others are run by the usual interpreter.
    """
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    folder = tempfile.mkdtemp(prefix="python-")
    usual, quick = Path(sys.executable), Path(folder, "bin", Path(sys.executable).name)
    quick.parent.mkdir()
    for program in usual.parent.iterdir():  # programs are looked for beside the interpreter
        if program.name != usual.name:
            (quick.parent / program.name).symlink_to(program)
    address = str(Path(folder, "server"))
    client = HERE.joinpath("process_client.py").read_text("utf-8")
    quick.write_text(f"#!{usual} -IS\n{client}", "utf-8")
    quick.chmod(0o755)
    environment = child_environment(**variables)
    folders = environment.pop("PYTHONPATH").split(os.pathsep)
    server = subprocess.Popen(
        [usual, HERE / "process_server.py", address, quick, *folders],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert server.stdin is not None and server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        raise ImportError("the process that tests fork does not start")

    atexit.register(server.communicate)  # which ends it
    return str(quick)


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

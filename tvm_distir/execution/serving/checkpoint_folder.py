# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Lock the folder of the checkpoints of a run, and write complete checkpoints into it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tvm_distir.execution.deployment.checkpoint_files import (
    CheckpointHead,
    complete_steps,
    step_name,
    sync,
    write_list,
    write_part,
)
from tvm_distir.execution.deployment.checkpoint_reading import read_checkpoint
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError, OutputError

_LOCK = ".lock"
HIDDEN = ".step-"


def check_owner(folder: Path, run: str | None, step: int) -> None:
    """Refuse (DIST0160) a folder with checkpoints of another run, or of a later step."""
    steps = complete_steps(folder)
    if not steps:
        return
    last = max(steps)
    if read_checkpoint(steps[last]).head.run != run:
        problem = f"it contains checkpoints of another run, the last of step {last}"
        remedy = "Continue that run with --resume, or give another folder."
    elif last > step:
        problem = f"its checkpoint of step {last} is later than step {step}, "
        problem += "from which the run continues"
        remedy = "Resume from the last one, move later ones away, or give another folder."
    else:
        return
    raise OutputError("DIST0160", problem, location=str(folder), remedy=remedy)


def complete(hidden: Path, path: Path) -> None:
    """Give a checkpoint whose files are all written its name."""
    sync(hidden)
    os.rename(hidden, path)
    sync(path.parent)


def save_state(
    folder: Path, head: CheckpointHead, program: Runnable, state: Mapping[int, Mapping[int, Array]]
) -> Path:
    """Write a checkpoint of all ranks, which are in this process; returns its path.

    Parameters
    ----------
    folder : Path
        The folder of the checkpoints of a run.
    head : CheckpointHead
    program : Runnable
    state : mapping of int to mapping of int to array
        The local arrays by rank and by position of the input.

    Raises
    ------
    EngineError
        DIST0642 where the folder cannot be written.
    OutputError
        DIST0160 where it has checkpoints of another run, this one or a later one, or where a job
        writes to it.
    """
    path = folder / step_name(head.step)
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            check_owner(folder, head.run, head.step)
            remove_remnants(folder)
            if path.exists():
                problem = f"it has a checkpoint of step {head.step}"
                remedy = "Do a step first, or give another folder."
                raise OutputError("DIST0160", problem, location=str(folder), remedy=remedy)
            hidden = folder / f"{HIDDEN}{head.step:08d}.{secrets.token_hex(8)}"
            hidden.mkdir()
            headers = {
                rank: write_part(hidden, entry, rank, state[rank])
                for entry in program.entries
                for rank in entry.ranks
            }
            indices = sorted({index for arrays in state.values() for index in arrays})
            write_list(hidden, head, program.entries, indices, headers, program.state.optimizer)
            complete(hidden, path)
    return path


def remove_remnants(folder: Path) -> None:
    """Remove what checkpoints that were cut short have left; the caller holds the lock."""
    for remnant in folder.glob(f"{HIDDEN}*"):
        if remnant.is_dir():
            shutil.rmtree(remnant)
        else:
            remnant.unlink()


@contextlib.contextmanager
def written(location: Path) -> Iterator[None]:
    """Turn errors of the file system into DIST0642."""
    try:
        yield
    except OSError as error:
        raise EngineError(
            "DIST0642",
            f"it cannot be written: {error.strerror or error}",
            location=str(error.filename or location),
            remedy="Free disk space, or give another folder.",
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which the system gives back when this process ends."""
    with written(folder):
        file = open(folder / _LOCK, "a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            problem = "another job writes checkpoints to it"
            remedy = "Wait for its end, or give another folder."
            raise OutputError("DIST0160", problem, location=str(folder), remedy=remedy) from error
        except OSError as error:
            print(
                f"warning: {folder} cannot be locked ({error.strerror}): start no second job there",
                file=sys.stderr,
            )
        yield

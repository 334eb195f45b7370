# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Keep the checkpoints of a run as transactions: each is there as a whole, or not at all.

A step is written to a hidden folder, brought to the disk, and renamed once it is whole. A complete
checkpoint is never opened for writing. A folder belongs to one run: a run that is not resumed from
it is refused where it has checkpoints, and so is a second job while the first one writes.
Hosts may share the folder or have one each: on every file system one process, the *writer*, locks,
renames and removes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from tvm_distir.core.plan import plain_name
from tvm_distir.execution.deployment.boxes import unreadable
from tvm_distir.execution.deployment.checkpoint_files import (
    LIST,
    CheckpointHead,
    complete_steps,
    step_name,
    write_list,
    write_part,
)
from tvm_distir.execution.deployment.checkpoint_reading import Checkpoint, read_checkpoint
from tvm_distir.execution.runtime.engines.job_fabric import JobFabric
from tvm_distir.execution.runtime.program.io_layout import Entries
from tvm_distir.execution.runtime.program.tensors import Array

from .checkpoint_folder import (
    HIDDEN,
    check_owner,
    complete,
    locked,
    remove_remnants,
    written,
)

_MARK = ".host-"
_PARTIAL = ".not-on-all-hosts-"
_NAMED = -1
"""In place of the steps of a folder, where a single checkpoint is named."""


class Checkpoints:
    """The checkpoints of a run, on one of its processes; all processes call the methods alike.

    Parameters
    ----------
    member : JobFabric
    entries : sequence of EntryFunction
        The entry functions of the program.
    state : sequence of int
        The positions of the inputs that are state.
    folder : Path or None
        Where checkpoints are written.
    resume : Path or None
        A checkpoint, or a folder of checkpoints, from which the run continues.
    optimizer : collection of int
        The positions that are state of the optimizer.
    """

    def __init__(
        self,
        member: JobFabric,
        entries: Entries,
        state: Sequence[int],
        folder: Path | None,
        resume: Path | None,
        optimizer: Collection[int] = (),
    ) -> None:
        self._member, self._entries = member, entries
        self._state, self._folder, self._resume = sorted(state), folder, resume
        self._optimizer = optimizer
        self._entry = next((e for e in entries if self._member.rank in e.ranks), None)
        self._name = self._token = ""
        self._is_writer = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[Checkpoint | None]:
        """Choose the checkpoint from which the run continues, and claim the folder until the end.

        Yields
        ------
        checkpoint : Checkpoint or None
            The one of ``resume``: the last that every host has. None for a new run.

        Raises
        ------
        EngineError
            DIST0641 for a checkpoint that is missing or damaged, DIST0642 where the folder cannot
            be written.
        OutputError
            DIST0160 where the folder holds checkpoints of another run or later ones, or where
            another job writes to it.
        """
        token = secrets.token_hex(8).encode()
        self._token = self._exchange(token, "the start of the run")[0].decode()
        checkpoint, everywhere = self._agreed_checkpoint()
        self._name = self._token if checkpoint is None else checkpoint.head.run
        with contextlib.ExitStack() as stack:
            if self._folder is not None:
                with written(self._folder):
                    self._folder.mkdir(parents=True, exist_ok=True)
                    self._is_writer = self._is_first_on_file_system(self._folder)
                if self._is_writer:
                    stack.enter_context(locked(self._folder))
                    self._claim(self._folder, checkpoint, everywhere)
                self._exchange(b"", "the folder of checkpoints")
            yield checkpoint

    def save(self, step: int, state: Mapping[int, Array], data: Mapping[str, str]) -> None:
        """Write a checkpoint.

        Parameters
        ----------
        step : int
            The number of steps that are done.
        state : mapping of int to array
            The local arrays of this rank by position of the input.
        data : mapping of str to str
            See :class:`CheckpointHead`; that of process 0 is written.

        Raises
        ------
        EngineError
            DIST0642 where the folder cannot be written.
        """
        folder, rank = self._folder, self._member.rank
        if folder is None:
            return
        hidden, header = folder / f"{HIDDEN}{step:08d}.{self._token}", None
        with written(folder):
            if self._entry is not None and rank is not None:
                hidden.mkdir(exist_ok=True)
                header = write_part(hidden, self._entry, rank, state)
        about = f"the checkpoint of step {step}"
        parts = [json.loads(t) for t in self._exchange(_text([rank, header, dict(data)]), about)]
        if self._is_writer:
            with written(folder):
                hidden.mkdir(exist_ok=True)
                headers = {rank: header for rank, header, _ in parts if header is not None}
                head = CheckpointHead(self._name, step, parts[0][2])
                write_list(hidden, head, self._entries, self._state, headers, self._optimizer)
                complete(hidden, folder / step_name(step))
        self._exchange(b"", about)

    def _exchange(self, text: bytes, about: str) -> list[bytes]:
        return self._member.exchange_texts(text, lambda late: f"{about} by processes {late}")

    # Resuming -------------------------------------------------------------------------------

    def _agreed_checkpoint(self) -> tuple[Checkpoint | None, frozenset[int]]:
        """Return the checkpoint to continue from, and the steps that all hosts have."""
        if self._resume is None:
            return None, frozenset()
        where, is_one = self._resume, (self._resume / LIST).is_file()
        steps = [_NAMED] if is_one else list(complete_steps(where))
        lists = [json.loads(t) for t in self._exchange(_text(steps), "the checkpoints")]
        everywhere = frozenset[int](lists[0]).intersection(*lists[1:])
        if not everywhere:
            raise unreadable(self._resume, "it contains no complete checkpoint of all hosts")
        if max(everywhere) != _NAMED:
            where = self._resume / step_name(max(everywhere))
        checkpoint = read_checkpoint(where)
        names = [_text([checkpoint.head.run, checkpoint.head.step])]
        if len({*names, *self._exchange(names[0], "the checkpoint")}) > 1:
            raise unreadable(where, "the hosts have checkpoints of different runs or steps")
        return checkpoint, everywhere

    # The folder -----------------------------------------------------------------------------

    def _is_first_on_file_system(self, folder: Path) -> bool:
        """Return whether no process before this one sees the same folder."""
        process = self._member.number
        mark = folder / f"{_MARK}{self._token}-{process}"
        if self._member.local_rank == 0:
            mark.touch()
        self._exchange(b"", "the folder of checkpoints")
        seen = [int(p.name.rpartition("-")[2]) for p in folder.glob(f"{_MARK}{self._token}-*")]
        self._exchange(b"", "the folder of checkpoints")
        mark.unlink(missing_ok=True)
        return self._member.local_rank == 0 and process == min([process, *seen])

    def _claim(self, folder: Path, start: Checkpoint | None, everywhere: frozenset[int]) -> None:
        """Remove what a killed job left, and refuse a folder of another run."""
        with written(folder):
            remove_remnants(folder)
            for mark in folder.glob(f"{_MARK}*"):
                if self._token not in mark.name:
                    mark.unlink()
            if start is not None and start.path.parent.samefile(folder):
                # The job ended after this file system had a checkpoint, and before all had it.
                for step, path in complete_steps(folder).items():
                    if step > start.head.step and not everywhere & {_NAMED, step}:
                        os.rename(path, folder / f"{_PARTIAL}{path.name}.{self._token}")
        run, step = (None, 0) if start is None else (start.head.run, start.head.step)
        check_owner(folder, run, step)


def state_names(entries: Entries, state: Sequence[int]) -> dict[str, int]:
    """Return the positions of the inputs that are state by their names in checkpoints."""
    ports = {port.index: port for entry in entries for port in entry.inputs}
    return {plain_name(ports[index].name): index for index in sorted(state)}


def _text(value: object) -> bytes:
    return json.dumps(value).encode()

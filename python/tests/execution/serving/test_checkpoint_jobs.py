# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of jobs whose processes are threads: who writes, what is resumed, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.execution.serving.test_checkpoints import TWO_BY_TWO, full, local
from tvm_distir.execution.deployment.checkpoint_files import complete_steps
from tvm_distir.execution.deployment.checkpoint_reading import Checkpoint, read_checkpoint
from tvm_distir.execution.serving.checkpoints import Checkpoints, state_names
from tvm_distir.support.errors.tree import DistIRError

RANKS = len(TWO_BY_TWO.ranks)
Action = Callable[[Checkpoints, Checkpoint | None, int], object]


class Job:
    """A process per rank, some of them on each host.

    Parameters
    ----------
    hosts : int
        Processes are numbered host by host.
    """

    def __init__(self, hosts: int) -> None:
        self.each = RANKS // hosts
        self.barrier = threading.Barrier(RANKS, timeout=20)
        self.texts = [b""] * RANKS

    def member(self, process: int) -> SimpleNamespace:
        def exchange_texts(text: bytes, describe: object) -> list[bytes]:
            self.texts[process] = text
            self.barrier.wait()
            texts = list(self.texts)
            self.barrier.wait()
            return texts

        return SimpleNamespace(
            rank=process, number=process, local_rank=process % self.each,
            exchange_texts=exchange_texts,
        )  # fmt: skip

    def run(
        self, folders: Sequence[Path | None], resume: Sequence[Path | None], act: Action
    ) -> list[object]:
        """Act on all processes while the checkpoints are open; an error is a result, too."""

        def work(process: int) -> object:
            member = self.member(process)
            host = process // self.each
            checkpoints = Checkpoints(member, [TWO_BY_TWO], [2, 0, 1], folders[host], resume[host])
            try:
                with checkpoints.opened() as start:
                    return act(checkpoints, start, process)
            except (DistIRError, threading.BrokenBarrierError) as error:
                self.barrier.abort()
                return error

        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(work, range(RANKS)))


def shards(rank: int) -> dict[int, np.ndarray]:
    return {port.index: local(TWO_BY_TWO, port, rank) for port in TWO_BY_TWO.inputs}


def save(*steps: int) -> Action:
    """Write checkpoints, and return the step that the run continued from."""

    def act(checkpoints: Checkpoints, start: Checkpoint | None, process: int) -> int | None:
        for step in steps:
            checkpoints.save(step, shards(process), {"x": f"{step}"} if process == 0 else {})
        return None if start is None else start.head.step

    return act


def refusals(results: list[object]) -> set[str]:
    """Return the codes of errors; the other processes were interrupted by them."""
    return {result.code for result in results if isinstance(result, DistIRError)}


def hidden(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.iterdir() if path.name.startswith((".step", ".host"))
    )


def test_a_shared_folder_has_a_whole_checkpoint(tmp_path: Path) -> None:
    assert Job(2).run([tmp_path] * 2, [None] * 2, save(3, 5)) == [None] * RANKS
    assert list(complete_steps(tmp_path)) == [3, 5] and hidden(tmp_path) == []
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.head.step, checkpoint.head.data) == (5, {"x": "5"})
    for name, index in state_names([TWO_BY_TWO], [0, 1, 2]).items():
        array = checkpoint.arrays[name]
        np.testing.assert_array_equal(array.read([(0, n) for n in array.shape]), full(index))


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("is_shared", [True, False])
def test_one_process_of_a_file_system_writes(tmp_path: Path, hosts: int, is_shared: bool) -> None:
    """The first process that sees the folder; each host has its own parts where it has its own."""
    folders = [tmp_path / ("all" if is_shared else str(host)) for host in range(hosts)]

    def act(checkpoints: Checkpoints, start: Checkpoint | None, process: int) -> bool:
        checkpoints.save(1, shards(process), {})
        return checkpoints._is_writer

    job = Job(hosts)
    writers = [process for process, is_writer in enumerate(job.run(folders, [None] * hosts, act))
               if is_writer]  # fmt: skip
    assert writers == ([0] if is_shared else [host * job.each for host in range(hosts)])
    for host, folder in enumerate(folders):
        parts = {path.name for path in complete_steps(folder)[1].glob("rank-*")}
        ranks = range(RANKS) if is_shared else range(host * job.each, (host + 1) * job.each)
        assert parts == {f"rank-{rank}.safetensors" for rank in ranks}
        assert hidden(folder) == []


def test_a_run_continues_from_its_last_checkpoint_alone(tmp_path: Path) -> None:
    """A folder belongs to one run, which does not write steps that it has."""
    one, two = [tmp_path / "one"] * 2, [tmp_path / "two"] * 2
    Job(2).run(one, [None] * 2, save(1, 2))
    assert refusals(Job(2).run(one, [None] * 2, save(9))) == {"DIST0160"}
    early = [one[0] / complete_steps(one[0])[1].name] * 2
    assert refusals(Job(2).run(one, early, save(9))) == {"DIST0160"}
    assert list(complete_steps(one[0])) == [1, 2]
    assert Job(2).run(two, early, save(2)) == [1] * RANKS  # from the first, elsewhere
    assert Job(2).run(one, one, save(4)) == [2] * RANKS
    assert list(complete_steps(one[0])) == [1, 2, 4]
    Job(2).run([tmp_path / "other"] * 2, [None] * 2, save(1))
    assert refusals(Job(2).run(one, [tmp_path / "other"] * 2, save(9))) == {"DIST0160"}
    assert Job(2).run([None] * 2, one, save(9)) == [4] * RANKS  # without a folder none is written
    assert list(complete_steps(one[0])) == [1, 2, 4]


def test_the_last_checkpoint_of_all_hosts_is_continued(tmp_path: Path) -> None:
    """What one host lacks is set aside on the others, and its step may be written again."""
    folders = [tmp_path / str(host) for host in range(4)]
    Job(4).run(folders, [None] * 4, save(1, 2, 3))
    for host, missing in ((0, 3), (1, 3), (3, 2), (3, 3)):
        complete_steps(folders[host])[missing].rename(tmp_path / f"{host}-{missing}")
    assert Job(4).run(folders, folders, save(2)) == [1] * 4
    assert [list(complete_steps(folder)) for folder in folders] == [[1, 2]] * 4
    aside = [len(list(folder.glob(".not-on-all-hosts-*"))) for folder in folders]
    assert aside == [1, 1, 2, 0]


@pytest.mark.parametrize("lacking", range(4))
def test_any_host_may_lack_the_last_checkpoint(tmp_path: Path, lacking: int) -> None:
    folders = [tmp_path / str(host) for host in range(4)]
    Job(4).run(folders, [None] * 4, save(1, 2))
    complete_steps(folders[lacking])[2].rename(tmp_path / "missing")
    assert Job(4).run([None] * 4, folders, save()) == [1] * 4


def test_hosts_without_a_common_checkpoint_are_refused(tmp_path: Path) -> None:
    """Any of the hosts may be the one that lacks it."""
    for lacking in range(4):
        folders = [tmp_path / f"{lacking}-{host}" for host in range(4)]
        Job(4).run(folders, [None] * 4, save(1))
        complete_steps(folders[lacking])[1].rename(tmp_path / f"{lacking}")
        assert refusals(Job(4).run([None] * 4, folders, save())) == {"DIST0641"}


def test_hosts_with_checkpoints_of_two_runs_are_refused(tmp_path: Path) -> None:
    folders = [tmp_path / str(host) for host in range(2)]
    for folder in folders:
        Job(2).run([folder] * 2, [None] * 2, save(1))
    assert refusals(Job(2).run([None] * 2, folders, save())) == {"DIST0641"}


def test_what_a_killed_job_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".step-00000007.token").mkdir()
    (tmp_path / ".host-token-3").touch()
    (tmp_path / "notes").touch()
    Job(1).run([tmp_path], [None], save())
    assert hidden(tmp_path) == [] and (tmp_path / "notes").exists()


def test_a_second_job_is_refused_while_the_first_writes(tmp_path: Path) -> None:
    def act(checkpoints: Checkpoints, start: Checkpoint | None, process: int) -> object:
        if process == 0:
            return refusals(Job(1).run([tmp_path], [None], save(1)))
        return None

    assert Job(1).run([tmp_path], [None], act)[0] == {"DIST0160"}
    assert Job(1).run([tmp_path], [None], save(1)) == [None] * RANKS


def test_an_error_of_the_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusals(Job(1).run([tmp_path / "file" / "x"], [None], save(1))) == {"DIST0642"}

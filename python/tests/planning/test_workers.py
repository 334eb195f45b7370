# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Results that several processes compute are those of one, and no process is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

import tvm_distir as td
from tests.planning.search.systems import QUICK
from tvm_distir.planning.calibration.calibrate import calibrate
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.driver import search
from tvm_distir.planning.search.folder import Folder
from tvm_distir.planning.sweep import sweep_run
from tvm_distir.planning.sweep.outcome import through_pipeline
from tvm_distir.planning.sweep.sweep_driver import sweep
from tvm_distir.planning.workers import Lookahead, Workers
from tvm_distir.support.errors.tree import SimulationError, UsageError

MEASURED = Path(__file__).parents[3] / "benchmarks" / "measured"
GRID = {"tp": [1, 3], "micro_batches": list(range(2, 14))}


def model(batch: int):
    """Return a model that worker processes can import."""
    return td.zoo.gpt(size="tiny", layers=2, batch=batch)


def process_of(context: str, task: int) -> tuple[str, int]:
    """Return what a task sees, and where it runs."""
    return f"{context} {task}", os.getpid()


def killed(folder: str, task: int) -> int:
    """Be killed as by a system that is out of memory: task 1 the first time, task 3 always."""
    mark = Path(folder, str(task))
    if task == 3 or (task == 1 and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def killed_row(pipeline, row):
    """Be killed by rows of three ranks, as by a system that is out of memory."""
    if row.tp == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return through_pipeline(pipeline, row)


def interrupt(context: str, task: int) -> None:
    """Fail as Ctrl-C in the first process does, when the other tasks run."""
    raise KeyboardInterrupt


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes begin at once; those of :class:`TestResults` import what they run."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: fork)


class TestWorkers:
    """Tasks that run ahead."""

    @pytest.mark.usefixtures("forked")
    def test_results_come_in_the_order_of_the_caller(self):
        with Workers(2) as workers:
            lookahead = Lookahead(workers, process_of, "task")
            results = [lookahead.get(n, range(n + 1, 6)) for n in range(6)]
        assert [text for text, _ in results] == [f"task {n}" for n in range(6)]
        assert os.getpid() not in {process for _, process in results}

    def test_one_job_runs_in_this_process(self):
        with Workers(1) as workers:
            assert Lookahead(workers, process_of, "task").get(7)[1] == os.getpid()

    @pytest.mark.usefixtures("forked")
    def test_a_task_whose_process_is_killed_runs_again(self, tmp_path):
        """The second time its name is in an error; the first ended in BrokenProcessPool."""
        with Workers(2) as workers:
            lookahead = Lookahead(workers, killed, str(tmp_path))
            assert [lookahead.get(n, range(n + 1, 3)) for n in range(3)] == [0, 1, 2]
            with pytest.raises(SimulationError, match=r"DIST0756.*process of 3 was killed"):
                lookahead.get(3, [4])
            assert lookahead.get(4) == 4

    def test_a_broken_executor_of_the_caller_is_named(self, tmp_path):
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
            lookahead = Lookahead(Workers(executor=executor), killed, str(tmp_path))
            with pytest.raises(SimulationError, match="DIST0756"):
                lookahead.get(3)

    @pytest.mark.usefixtures("forked")
    def test_processes_end_with_an_interrupt(self):
        before = {child.pid for child in multiprocessing.active_children()}
        with pytest.raises(KeyboardInterrupt), Workers(2) as workers:
            Lookahead(workers, process_of, "").get(0, range(1, 9))
            assert len(multiprocessing.active_children()) == len(before) + 2
            interrupt("", 0)
        assert {child.pid for child in multiprocessing.active_children()} == before

    def test_an_executor_of_the_caller_goes_on(self):
        with ThreadPoolExecutor(1) as pool:
            with Workers(executor=pool) as workers:
                assert Lookahead(workers, process_of, "task").get(7)[0] == "task 7"
            assert pool.submit(int, "3").result() == 3

    def test_no_jobs_are_refused(self):
        with pytest.raises(UsageError, match="DIST0152 workers"):
            Workers(0)


class TestResults:
    """What commands compute with several workers."""

    def test_of_a_search(self, tmp_path):
        rules = Constraints(("pp", "dp", "tp"), micro_batches=(2,), recompute=("none", "full"))
        output = []
        with ThreadPoolExecutor(2) as pool:
            for number, ways in enumerate(({}, {"workers": 2}, {"executor": pool, "workers": 3})):
                folder = Folder(tmp_path / str(number), {}, resume=False)
                result = search(
                    model, 4, QUICK, batch=8, train={"optimizer": "adam"}, constraints=rules,
                    top=2, folder=folder, **ways,
                )  # fmt: skip
                folder.finish(result)
                files = sorted(folder.path.glob("*.json*"))
                output.append({path.name: path.read_bytes() for path in files})
        assert len(json.loads(output[0]["search.json"])["plans"]) == 2
        assert output[0] == output[1] == output[2]

    def test_of_a_sweep(self, tmp_path):
        texts = []
        with ThreadPoolExecutor(2) as pool:
            for number, ways in enumerate(({}, {"workers": 2}, {"executor": pool, "workers": 3})):
                path = tmp_path / f"{number}.csv"
                result = sweep(
                    "zoo:gpt?size=tiny", GRID, QUICK, train={"optimizer": "adam"}, output=path,
                    cache=tmp_path / f"cache{number}", **ways,
                )  # fmt: skip
                assert result.complete
                texts.append(path.read_bytes())
        assert b",structure,ok" in texts[0] and b"DIST0234" in texts[0]
        assert texts[0] == texts[1] == texts[2]

    @pytest.mark.usefixtures("forked")
    def test_of_a_sweep_whose_row_kills_its_workers(self, tmp_path, monkeypatch):
        """The row has the error; the sweep ended in it, without the other rows."""
        monkeypatch.setattr(sweep_run, "through_pipeline", killed_row)
        path, grid = tmp_path / "rows.csv", {"tp": [1, 3, 2], "micro_batches": [2]}
        result = sweep(
            "zoo:gpt?size=tiny,hidden=192,heads=6", grid, QUICK, train={"optimizer": "adam"},
            output=path, cache=tmp_path / "cache", workers=2,
        )  # fmt: skip
        status = {row["tp"]: row["status"] for row in result.to_dicts()}
        assert result.complete and status[1] == status[2] == "ok"
        assert status[3].startswith("DIST0756 row 2: ")
        assert "DIST0756" in path.read_text()

    def test_of_a_calibration(self):
        texts = [
            calibrate(
                MEASURED / "v100-mlp.json", MEASURED / "v100_mlp.csv", folds=0, **ways
            ).to_text()
            for ways in ({}, {"workers": 2})
        ]
        assert texts[0] == texts[1]

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run independent tasks on worker processes, ahead of a caller that takes them in order.

The caller takes the results in order, as without workers, so that its result does not
depend on their number. Tasks whose results it does not ask for are canceled.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from types import TracebackType
from typing import Any, Generic, TypeVar

from tvm_distir.core.rewriting import gc_paused
from tvm_distir.support import SimulationError, UsageError, shortened

Task = TypeVar("Task", bound=Hashable)
Value = TypeVar("Value")


KILLED = "DIST0756"
"""The error of a task whose process was killed, and so was another that ran it alone."""


class Workers:
    """Worker processes of a command, or the executor of a caller.

    Parameters
    ----------
    count : int, optional
        The number of tasks that run at once; None: a single task, in this process, or with an
        executor as many as this machine has cores.
    executor : concurrent.futures.Executor, optional
        The executor that runs the tasks; None: processes of this machine, if there are several.

    Raises
    ------
    UsageError
        DIST0152 where ``count`` is not positive.
    """

    def __init__(self, count: int | None = None, executor: Executor | None = None) -> None:
        if count is not None and count < 1:
            raise UsageError(
                "DIST0152", f"{count} workers are not a positive number", location="workers",
                remedy="Give the number of tasks that run at once.",
            )  # fmt: skip
        self.count = count or (1 if executor is None else os.cpu_count() or 1)
        self.executor = executor
        self._pool: ProcessPoolExecutor | None = None
        self._futures: list[Future[Any]] = []
        self._others: set[int | None] = set()

    def __enter__(self) -> Workers:
        if self.executor is None and self.count > 1:
            self._others = {child.pid for child in multiprocessing.active_children()}
            self._begin()
        return self

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")  # threads of TVM do not survive a fork
        self.executor = self._pool = ProcessPoolExecutor(self.count, context, _ignore_interrupts)

    def replace_broken(self) -> bool:
        """Start new processes in place of those of which one was killed.

        False for the executor of a caller, which cannot be replaced.
        """
        if self._pool is None:
            return False
        self._pool.shutdown(cancel_futures=True)
        self._begin()
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancel the tasks that nobody waits for, and end the processes."""
        if self._pool is None:
            self.drop()
            return
        for child in multiprocessing.active_children():
            if child.pid not in self._others:
                child.terminate()
        self._pool.shutdown(cancel_futures=True)
        self._pool = self.executor = None

    def drop(self) -> None:
        """Cancel the tasks that have not started, and wait for the others."""
        wait([future for future in self._futures if not future.cancel()])

    @property
    def present(self) -> bool:
        """Return whether tasks run elsewhere than in this thread."""
        return self.executor is not None

    def submit(self, function: Callable[..., Value], *arguments: Any) -> Future[Value]:
        """Start a task on a worker; there must be some."""
        assert self.executor is not None
        future = self.executor.submit(function, *arguments)
        self._futures = [other for other in self._futures if not other.done()]
        self._futures.append(future)
        return future


class Lookahead(Generic[Task, Value]):
    """Tasks that workers start before their results are asked for.

    Parameters
    ----------
    workers : Workers
    function : callable
        A function of a module, which workers can import.
    context : object
        The first argument of the function, the same for all tasks.
    """

    def __init__(
        self, workers: Workers, function: Callable[[Any, Task], Value], context: Any
    ) -> None:
        self.workers, self.function, self.context = workers, function, context
        self._name = uuid.uuid4().hex
        self._started: dict[Task, Future[Value]] = {}

    def get(self, task: Task, following: Iterable[Task] = ()) -> Value:
        """Return the result of a task, while workers begin with those that may follow.

        Parameters
        ----------
        task : hashable
        following : iterable of hashable
            The tasks that are likely to be next, in order; no more are read than there are workers.

        Raises
        ------
        SimulationError
            DIST0756 a process that ran the task was killed, and so was another that ran it alone.
        """
        if not self.workers.present:
            return self.function(self.context, task)
        try:
            self._start(task)
            busy = sum(not future.done() for future in self._started.values())
            for other in following:
                if busy >= self.workers.count:
                    break
                busy += self._start(other)
            return self._started.pop(task).result()
        except BrokenExecutor as error:
            return self._again(task, error)

    def _again(self, task: Task, error: BrokenExecutor) -> Value:
        """Run a task again, alone, after a process was killed that ran it or another."""
        self._started.clear()
        if self.workers.replace_broken():
            try:
                self._start(task)
                return self._started.pop(task).result()
            except BrokenExecutor:
                self._started.clear()
                self.workers.replace_broken()
        raise SimulationError(
            KILLED, f"the worker process of {shortened(repr(task), 200)} was killed",
            location="workers", remedy="Use fewer workers, or one, if memory is scarce.",
        ) from error  # fmt: skip

    def _start(self, task: Task) -> bool:
        """Start a task that is not yet started, and return whether it is new."""
        if task in self._started:
            return False
        arguments = self.function, self._name, self.context, task
        self._started[task] = self.workers.submit(_run, *arguments)
        return True


def _run(function: Callable[[Any, Task], Value], name: str, context: Any, task: Task) -> Value:
    """Run a task with the first copy of its context, which holds what tasks before it made."""
    global _context
    if _context is None or _context[0] != name:
        _context = name, context
    with ONE_AT_A_TIME, gc_paused():
        return function(_context[1], task)


ONE_AT_A_TIME = threading.RLock()
"""The lock of the tasks of a process, for executors of threads: TVM's block builder is a global of
the process."""

_context: tuple[str, Any] | None = None
"""The name and the context of the last task of this process."""


def _ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes of a command, to the first process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run XLA in a process, started once per interpreter and number of devices."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import DependencyError, EngineError, ForkSafeLock, missing_extra

_HIDDEN = ("PYTHONPATH", "PYTHONHOME")
_LEAST_DEVICES = 8
_PART = 1 << 16
TIMEOUT_S = 600.0
"""The time that the process may take to start, and to compile and run a program."""
_RUNNING: dict[tuple[str, int], XlaProcess] = {}
process_turn = ForkSafeLock()
"""Held while a thread asks a process, which answers questions in sequence. A process for each
thread would hold several hundred MB."""


class XlaCollective(NamedTuple):
    """A collective of a program that XLA compiled.

    Attributes
    ----------
    kind : str
        ``all-reduce``, ...
    result_bytes : int
        The bytes of a device's result; of several results together, the bytes of all.
    ranks : int
        The number of ranks in a group.
    """

    kind: str
    result_bytes: int
    ranks: int


class XlaProcess:
    """A process with so many host devices, which ends with its standard input.

    Parameters
    ----------
    python : str
        An interpreter that can import JAX.
    devices : int
    timeout_s : float
        The time until which it must answer.

    Raises
    ------
    DependencyError
        DIST0111 where it cannot.
    EngineError
        DIST0615 it ended, DIST0617 it takes longer.
    """

    def __init__(self, python: str, devices: int, timeout_s: float = TIMEOUT_S) -> None:
        flags = os.environ.get("XLA_FLAGS", "")
        flags += f" --xla_force_host_platform_device_count={devices}"
        environment = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()},
        )
        self._unread = b""
        if "version" not in self._asked(None, timeout_s):
            self.close()
            raise missing(python)

    @property
    def is_alive(self) -> bool:
        """Return whether the process can be asked."""
        return self._process.poll() is None

    def run(
        self,
        text: str,
        arrays: Sequence[Array],
        devices: int,
        replicas: bool,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[list[Array], list[XlaCollective]]:
        """Compile and run a program.

        Parameters
        ----------
        text : str
            StableHLO.
        arrays : sequence of ndarray
            Whole inputs; of replicas those of each device, device by device.
        devices : int
        replicas : bool
            Whether devices are replicas, or partitions of a program.
        timeout_s : float
            The time that compiling and running may take; the process is killed then.

        Returns
        -------
        outputs : list of ndarray
            The outputs, in the form of the inputs.
        collectives : list of XlaCollective
            The collectives of the compiled program; a collective in the body of a loop is listed
            once.

        Raises
        ------
        EngineError
            DIST0606 XLA refuses the program, DIST0615 the process ended, DIST0617 it takes longer.
        """
        with tempfile.TemporaryDirectory(prefix="tvm_distir_xla_") as folder:
            names = ("text", "inputs.npz", "outputs.npz", "question.json")
            paths = {name: str(Path(folder) / name) for name in names}
            Path(paths["text"]).write_text(text, encoding="utf-8")
            plain = {str(i): _plain(array) for i, array in enumerate(arrays)}
            np.savez(paths["inputs.npz"], **plain)  # type: ignore[arg-type,unused-ignore]
            question = {
                "text": paths["text"],
                "inputs": paths["inputs.npz"],
                "outputs": paths["outputs.npz"],
                "kinds": [str(array.dtype) for array in arrays],
                "devices": devices,
                "replicas": replicas,
            }
            Path(paths["question.json"]).write_text(json.dumps(question), encoding="utf-8")
            answer = self._asked(paths["question.json"], timeout_s)
            if "error" in answer:
                problem = f"XLA refused the program: {str(answer['error']).strip()[:600]}"
                remedy = "Check its text: tvm_distir.to_stablehlo(module)."
                raise EngineError("DIST0606", problem, location="xla", remedy=remedy)
            with np.load(paths["outputs.npz"]) as archive:
                results = [_typed(archive[str(i)], kind) for i, kind in enumerate(answer["kinds"])]
        return results, [XlaCollective(*entry) for entry in answer["collectives"]]

    def close(self) -> int:
        """End the process and return its exit status."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        return self._process.wait()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self.close()

    def _asked(self, question: str | None, timeout_s: float) -> dict[str, Any]:
        """Return the process' answer to the question in a file; it is killed where none comes."""
        try:
            return self._answer(question, timeout_s)
        except BaseException:
            self.kill()  # what it would still say answers nothing that is asked later
            raise

    def _answer(self, question: str | None, timeout_s: float) -> dict[str, Any]:
        pipe = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # that it ended is told when it is read
            if pipe is not None and question is not None:
                pipe.write(f"{question}\n".encode())  # a path: a stopped process cannot hold it up
                pipe.flush()
        end = time.monotonic() + timeout_s
        source = self._process.stdout.fileno() if self._process.stdout else -1
        while b"\n" not in self._unread:
            if not select.select([source], [], [], max(end - time.monotonic(), 0))[0]:
                raise self._late(question, timeout_s)
            part = os.read(source, _PART)
            if not part:
                raise self._ended()
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return dict(json.loads(line))

    @staticmethod
    def _late(question: str | None, timeout_s: float) -> EngineError:
        action = "start" if question is None else "compile and run the program"
        problem = f"the process of XLA did not {action} within {timeout_s:g} s and was killed"
        remedy = "Raise the engine's timeout_s if it is only slow."
        return EngineError("DIST0617", problem, location="xla", remedy=remedy)

    def _ended(self) -> EngineError:
        problem = f"the process of XLA ended with {self.close()}"
        remedy = "Run it again, with less memory in use if it was killed."
        return EngineError("DIST0615", problem, location="xla", remedy=remedy)


def missing(python: str, location: str = 'engine "xla"') -> DependencyError:
    """Return an error for an interpreter that has no JAX."""
    return missing_extra(f"it requires jax, which {python} cannot import", location, "jax")


def running(python: str, devices: int, timeout_s: float = TIMEOUT_S) -> XlaProcess:
    """Return a process of an interpreter with at least so many devices, started where none is."""
    count = _LEAST_DEVICES
    while count < devices:
        count *= 2
    process = _RUNNING.get((python, count))
    if process is None or not process.is_alive:
        process = _RUNNING[python, count] = XlaProcess(python, count, timeout_s)
    return process


@atexit.register
def _close_all() -> None:
    for process in _RUNNING.values():
        process.close()


def _plain(array: Array) -> Array:
    """Return an array of a type that NumPy can store."""
    if str(array.dtype) in np.sctypeDict:
        return array
    return array.view(f"u{array.dtype.itemsize}")


def _typed(array: Array, kind: str) -> Array:
    return array.view(getattr(ml_dtypes, kind)) if hasattr(ml_dtypes, kind) else array

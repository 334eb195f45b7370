# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The process in which XLA runs: started once per interpreter and number of devices."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ....errors import DependencyError, EngineError

Array = npt.NDArray[Any]
_HIDDEN = ("PYTHONPATH", "PYTHONHOME")
_LEAST_DEVICES = 8
_RUNNING: dict[tuple[str, int], XlaProcess] = {}


class XlaProcess:
    """A process with so many host devices, which ends with its standard input.

    Parameters
    ----------
    python : str
        An interpreter that can import JAX.
    devices : int

    Raises
    ------
    DependencyError
        DIST0111 where it cannot.
    """

    def __init__(self, python: str, devices: int) -> None:
        flags = os.environ.get("XLA_FLAGS", "")
        flags += f" --xla_force_host_platform_device_count={devices}"
        kept = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**kept, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()},
        )
        if "version" not in self._read():
            self.close()
            raise missing(python)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def run(
        self, text: str, arrays: Sequence[Array], devices: int, replicas: bool
    ) -> tuple[list[Array], dict[str, int]]:
        """Compile and run a program.

        Parameters
        ----------
        text : str
            StableHLO.
        arrays : sequence of ndarray
            Whole inputs; of replicas those of each device, device by device.
        devices : int
        replicas : bool
            Whether devices are replicas, or partitions of one program.

        Returns
        -------
        outputs : list of ndarray
            As the inputs are.
        collectives : dict of str to int
            How many of each kind the compiled program has.

        Raises
        ------
        EngineError
            DIST0606 XLA refuses the program, DIST0615 the process ended.
        """
        with tempfile.TemporaryDirectory(prefix="tvm_distir_xla_") as folder:
            paths = {
                name: str(Path(folder) / name) for name in ("text", "inputs.npz", "outputs.npz")
            }
            Path(paths["text"]).write_text(text, encoding="utf-8")
            plain = {str(i): _plain(array) for i, array in enumerate(arrays)}
            np.savez(paths["inputs.npz"], **plain)  # type: ignore[arg-type,unused-ignore]
            answer = self._ask(
                {
                    "text": paths["text"],
                    "inputs": paths["inputs.npz"],
                    "outputs": paths["outputs.npz"],
                    "kinds": [str(array.dtype) for array in arrays],
                    "devices": devices,
                    "replicas": replicas,
                }
            )
            if "error" in answer:
                raise EngineError(
                    "DIST0606",
                    f"XLA does not take the program: {str(answer['error']).strip()[:600]}",
                    place="xla",
                    remedy="See tvm_distir.to_stablehlo(module) for its text.",
                )
            with np.load(paths["outputs.npz"]) as held:
                found = [_typed(held[str(i)], kind) for i, kind in enumerate(answer["kinds"])]
        return found, {str(k): int(n) for k, n in answer["collectives"].items()}

    def close(self) -> int:
        """End the process; its exit status."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        return self._process.wait()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        pipe = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # that it ended is told when it is read
            if pipe is not None:
                pipe.write(json.dumps(question) + "\n")
                pipe.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise EngineError(
                "DIST0615",
                f"the process of XLA ended with {self.close()}",
                place="xla",
                remedy="Run it again; with less memory in use where it was killed.",
            )
        return dict(json.loads(line))


def missing(python: str) -> DependencyError:
    """An error for an interpreter that has no JAX."""
    return DependencyError(
        "DIST0111",
        f"the engine xla needs jax, which {python} cannot import",
        place='engine "xla"',
        remedy='Install the extra: pip install "tvm_distir[jax]".',
    )


def running(python: str, devices: int) -> XlaProcess:
    """A process of an interpreter with at least so many devices, started where none is."""
    count = _LEAST_DEVICES
    while count < devices:
        count *= 2
    found = _RUNNING.get((python, count))
    if found is None or not found.is_alive:
        found = _RUNNING[python, count] = XlaProcess(python, count)
    return found


@atexit.register
def _close_all() -> None:
    for found in _RUNNING.values():
        found.close()


def _plain(array: Array) -> Array:
    """An array of a type that NumPy can store."""
    if str(array.dtype) in np.sctypeDict:
        return array
    return array.view(f"u{array.dtype.itemsize}")


def _typed(array: Array, kind: str) -> Array:
    return array.view(getattr(ml_dtypes, kind)) if hasattr(ml_dtypes, kind) else array

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Give the inputs of each step of a run, and checksums by which a resumed run knows them again."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_distir.core.plan import plain_name
from tvm_distir.execution.deployment.checkpoint import open_weights
from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.io_layout import Bounds, np_dtype
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.sharded import ShardedArray, Stored
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError, OutputError

from .rate_schedule import RATE, RateSchedule

_READ_ELEMENTS = 1 << 18
_SAMPLES, _SAMPLE_ELEMENTS = 64, 1024


@dataclass(frozen=True)
class StepArray:
    """One step of an array with a first dim of steps.

    Attributes
    ----------
    array : FileArray
    step : int
    """

    array: Any
    step: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a step."""
        return tuple(int(n) for n in self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Return the element type."""
        kind: np.dtype[np.generic] = self.array.dtype
        return kind

    def read(self, bounds: Bounds) -> Array:
        """Read a box of the step only."""
        content: Array = self.array.read(((self.step, self.step + 1), *bounds))[0]
        return content


@dataclass(frozen=True)
class ZeroArray:
    """An array of zeros, of which only the boxes that are read take memory.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy dtype
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    def read(self, bounds: Bounds) -> Array:
        """Return the zeros of a box."""
        return np.zeros([b - a for a, b in bounds], self.dtype)


@dataclass(frozen=True)
class MasterArray:
    """The first value of a float32 copy of a weight, of which boxes can be read.

    Attributes
    ----------
    weight : array, Stored or ShardedArray
    shape : tuple of int
    dtype : numpy dtype
    """

    weight: Any
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    def read(self, bounds: Bounds) -> Array:
        """Return a box of the weight in the type of the copy."""
        if isinstance(self.weight, Stored):
            return self.weight.read(bounds).astype(self.dtype)
        full = self.weight.whole() if isinstance(self.weight, ShardedArray) else self.weight
        box: Array = full[tuple(slice(a, b) for a, b in bounds)]
        return box.astype(self.dtype)


def first_values(program: Runnable, known: Mapping[int, Any]) -> dict[int, Any]:
    """Return inputs before the first step by position: known ones, and state that follows.

    Parameters
    ----------
    program : Runnable
    known : mapping of int to array, Stored or ShardedArray
        Weights, and state that does not start as zeros, by position.
    """
    ports, state = input_ports(program.entries), program.state
    zeros = {
        i: ZeroArray(ports[i].shape, np_dtype(ports[i].dtype))
        for i in (*state.zeros, *state.caches.values())
    }
    masters = {
        i: MasterArray(known[weight], ports[i].shape, np_dtype(ports[i].dtype))
        for i, weight in state.masters.items()
        if weight in known
    }
    return {**zeros, **masters, **known}


class StepData:
    """The inputs of the steps of a run.

    Parameters
    ----------
    inputs : Path or None
        A file of arrays that are the same in every step.
    steps : Path or None
        A file of arrays with a first dim of steps.
    repeat : int
        How often the steps are repeated.
    state : collection of str
        The names of the inputs that are state.
    rate : RateSchedule, optional
        The schedule of the input ``rate``.

    Raises
    ------
    EngineError
        DIST0602 where the arrays of ``steps`` have different first dims, one is state, or files
        have rates beside a schedule.
    """

    def __init__(
        self,
        inputs: Path | None,
        steps: Path | None,
        repeat: int,
        state: Collection[str],
        rate: RateSchedule | None = None,
    ) -> None:
        self._same = {} if inputs is None else dict(open_weights(inputs))
        self._varying = {} if steps is None else dict(open_weights(steps))
        self._state, self._inputs, self._steps = frozenset(state), inputs, steps
        self._rate = rate
        if rate is not None and RATE in {*self._same, *self._varying}:
            raise _unfit(steps or inputs, f'it has "{RATE}" beside a schedule', "Leave one out.")
        counts = {int(array.shape[0]) if array.shape else 0 for array in self._varying.values()}
        if len(counts) > 1:
            raise _unfit(
                steps,
                f"its arrays have {sorted(counts)} steps",
                "Give every array a first dim of as many steps.",
            )
        carried = [name for name in self._varying if plain_name(name) in self._state]
        if carried:
            raise _unfit(
                steps,
                f'"{carried[0]}" is state, which each step takes from the one before',
                "Leave it out, and give its first value by --inputs.",
            )
        self._length = counts.pop() if counts else 1
        self.count = repeat * self._length

    def of_step(self, step: int) -> dict[str, Any]:
        """Return the inputs of a step, 1 for the first one, by name."""
        row = (step - 1) % self._length
        rate = {} if self._rate is None else {RATE: np.asarray(self._rate(step), "float32")}
        return {**self._same, **{k: StepArray(v, row) for k, v in self._varying.items()}, **rate}

    def checksums(self, step: int) -> dict[str, str]:
        """Return a checksum of each input of a step that is no state, and no rate of a schedule.

        Of arrays of more than 262,144 elements a sample of 64 runs of neighbors is read.
        """
        inputs = {plain_name(name): array for name, array in self.of_step(step).items()}
        omitted = self._state if self._rate is None else self._state | {RATE}
        return {k: _checksum(v) for k, v in inputs.items() if k not in omitted}

    def resume(self, location: Path, step: int, data: Mapping[str, str], is_first: bool) -> None:
        """Check that a run goes on with its own data, and take no state from files any more.

        Parameters
        ----------
        location : Path
            The checkpoint, for messages.
        step : int
            The number of steps that are done.
        data : mapping of str to str
            The :meth:`checksums` of the last step, as the checkpoint has them.
        is_first : bool
            Whether this is process 0, which compares the data and prints what is not read.

        Raises
        ------
        EngineError
            DIST0602 where more steps are done than the files have.
        OutputError
            DIST0160 where the data are others than those of the run.
        """
        if step > self.count:
            raise _unfit(
                self._steps or location,
                f"the checkpoint has done {step} steps, of which there are {self.count}",
                "Give the data of the run.",
            )
        initial = [name for name in self._same if plain_name(name) in self._state]
        for name in initial:
            del self._same[name]
        if not is_first:
            return
        if initial:
            print(
                f"note: {len(initial)} arrays of {self._inputs} are state; they are read from "
                f"{location} instead",
                file=sys.stderr,
            )
        here = self.checksums(step)
        other = sorted(name for name in {*here, *data} if here.get(name) != data.get(name))
        if other and data:  # a session knows no data of a run
            raise OutputError(
                "DIST0160",
                f'"{other[0]}" of step {step} has other values than in the run that is resumed',
                location=str(location),
                remedy="Give the inputs and steps of that run, or start another one elsewhere.",
            )


def _unfit(location: Path | None, problem: str, remedy: str) -> EngineError:
    return EngineError("DIST0602", problem, location=str(location), remedy=remedy)


def _checksum(array: Any) -> str:
    """Return a checksum of the shape, the type and the values of an array in a file."""
    shape = tuple(int(n) for n in array.shape)
    digest, count = hashlib.sha256(repr((shape, str(array.dtype))).encode()), math.prod(shape)
    if count <= _READ_ELEMENTS:
        digest.update(np.ascontiguousarray(array.read(tuple((0, n) for n in shape))).tobytes())
        return digest.hexdigest()
    for position in np.linspace(0, count - 1, _SAMPLES).astype(int):
        *outer, last = (int(n) for n in np.unravel_index(position, shape))
        box = (*((n, n + 1) for n in outer), (last, min(last + _SAMPLE_ELEMENTS, shape[-1])))
        digest.update(np.ascontiguousarray(array.read(box)).tobytes())
    return digest.hexdigest()

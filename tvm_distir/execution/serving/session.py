# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a program step by step in this process, with weights and state that stay with its ranks."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvm_distir.execution.deployment.checkpoint import open_weights
from tvm_distir.execution.deployment.checkpoint_files import CheckpointHead
from tvm_distir.execution.deployment.checkpoint_reading import read_checkpoint
from tvm_distir.execution.deployment.loading import load
from tvm_distir.execution.runtime.dispatch.packed_names import AUTO
from tvm_distir.execution.runtime.engines.base import Engine, check_outputs
from tvm_distir.execution.runtime.engines.local_engine import LocalEngine
from tvm_distir.execution.runtime.engines.registry import engine as make_engine
from tvm_distir.execution.runtime.program.input_faults import bad_input
from tvm_distir.execution.runtime.program.inputs import Inputs, bind_some, input_ports
from tvm_distir.execution.runtime.program.io_layout import Entries
from tvm_distir.execution.runtime.program.joining import gather_outputs
from tvm_distir.execution.runtime.program.runnable import as_runnable, with_donation
from tvm_distir.execution.runtime.program.sharded import sharded_outputs
from tvm_distir.execution.runtime.program.symbolic_sizes import is_symbolic
from tvm_distir.execution.runtime.program.targets import check_engine_runs
from tvm_distir.execution.runtime.program.tensors import share_tensor
from tvm_distir.support import EngineError

from .checkpoint_folder import save_state
from .checkpoints import state_names
from .rate_schedule import RATE, RateSchedule
from .resident_tensors import ResidentTensors
from .step_data import first_values
from .step_ports import StepPorts


class Session:
    """A distributed program whose weights and state stay with its ranks between steps.

    The program is compiled once. Arrays are shared with the ranks where their memory is contiguous
    and aligned to 64 bytes, as that of PyTorch's tensors is: the caller does not change weights
    while the session is open. What a step returns as the input of the next one (the weights and the
    state of the optimizer of a training step, caches of a serving step) replaces that input.

    Parameters
    ----------
    program : IRModule, program of td.compile, Deployment, str or path
        The program, at level 5; a path is a folder of :func:`tvm_distir.deploy`.
    weights : mapping of str to array, str or path, optional
        The inputs that stay, by the names of the model, but for those in a deployed folder. A path
        is a file of weights, or a checkpoint (:func:`tvm_distir.open_weights`). State of an
        optimizer and caches start as zeros unless they are given.
    engine : str or Engine
        An engine whose ranks are in this process: ``"threads"`` or ``"virtual"``.
    dispatch : str
        See :func:`tvm_distir.run`.
    rate : str, float or callable, optional
        The learning rate of a step with ``rate_input``: a number, a :class:`RateSchedule`, its
        text, or another function of the number of the step, 1 for the first.

    Attributes
    ----------
    inputs : tuple of str
        The names of the inputs of each step, in order.
    steps : int
        The number of steps that are done, those before a checkpoint included.

    Raises
    ------
    EngineError
        DIST0602 for weights that are missing or do not fit, DIST0605 for an engine of several
        processes; and as :func:`tvm_distir.run`.

    Examples
    --------
    >>> step = td.train_step(td.zoo.mlp(size="tiny"), loss="mse", optimizer="adam", rate=0.1)
    >>> dist = td.distribute(step, td.planning.make_plan(step, "zero", {"dp": 2}))
    >>> rng = np.random.default_rng(0)
    >>> x, targets, *weights = [
    ...     rng.normal(size=[int(n) for n in p.ty.shape]).astype("float32")
    ...     for p in step["main"].params[:8]
    ... ]
    >>> names = [str(p.name) for p in step["main"].params[2:8]]
    >>> with td.Session(dist, dict(zip(names, weights))) as session:
    ...     losses = [session.step(x, targets)[0].item() for _ in range(3)]
    >>> session.inputs, session.steps, losses[0] > losses[1] > losses[2]
    (('x', 'targets'), 3, True)
    """

    def __init__(
        self,
        program: Any,
        weights: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        engine: str | Engine = "threads",
        dispatch: str = AUTO,
        rate: str | float | Callable[[int], float] | None = None,
    ) -> None:
        self._engine = _local_engine(make_engine(engine, dispatch))
        if isinstance(program, str | os.PathLike):
            program = load(program)
        runnable = as_runnable(program, self._engine.dispatch)
        self._entries: Entries = runnable.entries
        ports = input_ports(self._entries)
        caches = [ports[i].name for i in runnable.state.caches.values()]
        self._program = with_donation(runnable, caches)
        check_engine_runs(self._program.target, f"engine {self._engine.name}")
        if is_symbolic(self._entries):
            problem = "its inputs have dims without sizes"
            raise _cannot(problem, "Distribute the module with sizes: td.bind_dims.")
        opened = open_weights(weights) if isinstance(weights, str | os.PathLike) else weights or {}
        known = {**self._program.stored, **bind_some(self._entries, opened)}
        self._ports = StepPorts.of(self._program, known)
        self._turn, self._run_name = threading.RLock(), secrets.token_hex(8)
        first = first_values(self._program, known)
        self._tensors: ResidentTensors | None = ResidentTensors(self._program, self._ports, first)
        self._rate = rate if rate is None or callable(rate) else RateSchedule.read(str(rate))
        names = [port.name for port in self._ports.batch.values()]
        if rate is not None and RATE not in names:
            raise bad_input(f'there is no input "{RATE}"', "Make the step with rate_input=True.")
        self.inputs = tuple(n for n in names if rate is None or n != RATE)
        self.steps = 0

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop weights and state; no step is possible afterwards."""
        self._tensors = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the full shape of each input, weights and state included, by name."""
        return {port.name: port.shape for port in input_ports(self._entries).values()}

    @property
    def _resident(self) -> ResidentTensors:
        if self._tensors is None:
            raise _cannot("it is closed", "Make another one.")
        return self._tensors

    def step(self, *batch: Any, outputs: str = "whole", **named: Any) -> list[Any]:
        """Run a step; weights and state are those that the step before returned.

        Parameters
        ----------
        batch : arrays
            The inputs of the step, in the order of :attr:`inputs`; NumPy arrays, tensors of
            PyTorch, or others that :func:`tvm_distir.run` takes.
        outputs : str
            ``"whole"``, or ``"sharded"`` to leave them on their ranks.
        named : arrays
            Inputs by name; ``batch`` are then the others.

        Returns
        -------
        outputs : list of ndarray, tensor or ShardedArray
            The outputs that are no state, such as the loss. Tensors where the batch has one.

        Raises
        ------
        EngineError
            DIST0602 for inputs that do not fit; the first failure of a rank, after which weights
            and state are those before the step, but for caches that are appended to in place.
        """
        check_outputs(outputs)
        is_torch = any(hasattr(value, "detach") for value in (*batch, *named.values()))
        reported = self._ports.reported
        with self._turn:
            if self._rate is not None:
                if RATE in named:
                    raise bad_input(f'"{RATE}" is given beside a schedule', "Leave one out.")
                named = {**named, RATE: np.asarray(self._rate(self.steps + 1), "float32")}
            results = self._resident.step(self._engine, self._all_inputs(batch, named))
            self.steps += 1
        if outputs == "sharded":
            return list(sharded_outputs(reported, results))
        full = gather_outputs(reported, results)
        return [_torch_tensor(array) for array in full] if is_torch else full

    def _all_inputs(self, batch: Sequence[Any], named: Mapping[str, Any]) -> Inputs:
        """Return the inputs of a step; by name where some are."""
        if not named:
            return batch
        others = [name for name in self.inputs if name not in named]
        if len(batch) != len(others):
            problem = f"{len(batch)} inputs are given by position, for {others}"
            raise bad_input(problem, "Give each input once.")
        return {**dict(zip(others, batch)), **named}

    def state_dict(self, *, torch: bool = False, optimizer: bool = False) -> dict[str, Any]:
        """Return full weights by the names of the model, as arrays of their own.

        Parameters
        ----------
        torch : bool
            Return tensors of PyTorch, as ``load_state_dict`` of a module takes them.
        optimizer : bool
            Return the state of the optimizer and caches too.
        """
        ports = self._ports.selected(optimizer)
        with self._turn:
            arrays = {port.name: self._resident.full(index) for index, port in ports.items()}
        return {n: _torch_tensor(a) for n, a in arrays.items()} if torch else arrays

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace weights and state by full arrays; those that are not named stay.

        Parameters
        ----------
        state : mapping of str to array
            Arrays or tensors by the names of the model, as :meth:`state_dict` returns them.

        Raises
        ------
        EngineError
            DIST0602 for names that are no weights or state, and arrays that do not fit.
        """
        values = bind_some(self._entries, state)
        for index in set(values) & set(self._ports.batch):
            port = self._ports.batch[index]
            raise bad_input("it is an input of each step, no weight", "Leave it out.", port)
        follow = first_values(self._program, values)
        masters = self._program.state.masters
        with self._turn:
            self._resident.bind({i: v for i, v in follow.items() if i in values or i in masters})

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a checkpoint ``step-<n>`` into a folder, which sessions and jobs can load.

        The folder belongs to one run: that of this session and of the checkpoint that it loaded.

        Returns
        -------
        path : Path
            The folder of the checkpoint.

        Raises
        ------
        EngineError
            DIST0642 where the folder cannot be written.
        OutputError
            DIST0160 where it has checkpoints of another run, or this one or a later one.
        """
        with self._turn:
            head = CheckpointHead(self._run_name, self.steps, {})
            where = Path(os.path.realpath(folder))
            return save_state(where, head, self._program, self._resident.saved())

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Read weights and state from a checkpoint, or the last one of a folder, of any mesh.

        A program without an optimizer reads the weights alone; weights that the checkpoint lacks
        because they are frozen stay.

        Raises
        ------
        EngineError
            DIST0641 where there is none, it is damaged, or lacks weights or state of the program;
            DIST0602 for arrays of other shapes or types.
        """
        checkpoint = read_checkpoint(Path(os.path.realpath(folder)))
        names = state_names(self._entries, list(self._ports.resident))
        values = checkpoint.values(names, {*self._program.state.inputs.values()})
        ports = self._ports.resident
        checked = bind_some(self._entries, {ports[i].name: x for i, x in values.items()})
        with self._turn:
            self._resident.bind(checked)
            self.steps, self._run_name = checkpoint.head.step, checkpoint.head.run


def _local_engine(engine: Engine) -> LocalEngine:
    if isinstance(engine, LocalEngine):
        return engine
    raise EngineError(
        "DIST0605",
        "its ranks are processes, which do not live on between the steps of a session",
        location=f"engine {engine.name}",
        remedy='Use "threads" or "virtual", or deploy the program and start a job: '
        "tvm-distir run FOLDER --job --steps DATA.",
    )


def _cannot(problem: str, remedy: str) -> EngineError:
    return EngineError("DIST0605", problem, location="session", remedy=remedy)


def _torch_tensor(array: Any) -> Any:
    import torch

    return torch.from_dlpack(share_tensor(array)) if isinstance(array, np.ndarray) else array

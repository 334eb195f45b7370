# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split inputs before a run and join outputs after it, for every engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_distir.execution.runtime.dispatch.packed_names import AUTO
from tvm_distir.execution.runtime.program.counts import CollectiveCount
from tvm_distir.execution.runtime.program.inputs import Inputs, bind_inputs, donated_inputs
from tvm_distir.execution.runtime.program.joining import gather_outputs
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable, as_runnable, with_donation
from tvm_distir.execution.runtime.program.sharded import sharded_outputs
from tvm_distir.execution.runtime.program.symbolic_sizes import sized_program
from tvm_distir.execution.runtime.program.targets import check_engine_runs
from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError, nearest

LocalResults = Mapping[int, list[Array]]
"""Local results by rank, in the order of ``dist.io``."""

OUTPUTS = ("whole", "sharded")
"""The forms in which a run can return its outputs."""


def check_outputs(outputs: str) -> None:
    """Refuse (DIST0607) a value that is not in :data:`OUTPUTS`."""
    if outputs not in OUTPUTS:
        problem = f'there is no form of outputs "{outputs}"'
        remedy = nearest(str(outputs), OUTPUTS)
        raise EngineError("DIST0607", problem, location="outputs", remedy=remedy)


class Engine(ABC):
    """Runs distributed programs.

    Attributes
    ----------
    name : str
    collectives : tuple of CollectiveCount
        The collectives that the last run executed, as the first rank of every mesh counted them.
    dispatch : str
        Whose kernels modules call: one of :data:`~.dispatch.packed_names.DISPATCHES`.
    most_in_flight : int
        The most collectives that a rank had started and not waited for at once, in the last run,
        of engines that count them.
    trace : Path or None
        The file for the trace of a run; see :mod:`~.program.run_trace`.
    records_trace : bool
        Whether the engine can write one.
    donate : sequence of str
        The inputs that a run may overwrite; see :func:`~.registry.run`.
    donated : frozenset of int
        The inputs whose memory a run shares with the caller, by position.
    takes_objects : bool
        Whether its ranks are in this process, so that they can be given objects, and share the
        memory of donated inputs.
    """

    name: str
    takes_objects: bool = False
    donate: Sequence[str] = ()
    donated: frozenset[int] = frozenset()
    records_trace: bool = False
    trace: Path | None = None
    dispatch: str = AUTO
    most_in_flight: int = 0
    collectives: tuple[CollectiveCount, ...] = ()

    def check_available(self) -> None:
        """Refuse an engine that lacks a library or a program here, before anything is done.

        Raises
        ------
        DependencyError
            Naming what is missing.
        """

    def for_verification(self) -> Engine:
        """Return the engine for a comparison with a reference, with all its own checks."""
        return self

    def run(self, dist: Any, inputs: Inputs, outputs: str = "whole") -> list[Any]:
        """Run a level-5 module or a deployed program; see :func:`~.registry.run`."""
        check_outputs(outputs)
        self.check_trace()
        self.collectives = ()
        program = as_runnable(dist, self.dispatch)
        self.check_target(program.target)
        ports = (p for entry in program.entries for p in (*entry.inputs, *entry.outputs))
        object_port = next((port for port in ports if port.is_object), None)
        if object_port is not None and not self.takes_objects:
            raise EngineError(
                "DIST0605",
                "it is an object of each device, which cannot leave its process",
                location=f'engine {self.name}/"{object_port.name}"',
                remedy='Use the engine "threads" or "virtual".',
            )
        self.donated = frozenset()
        if self.donate:
            donated = donated_inputs(program.entries, self.donate)
            if self.takes_objects:
                self.donated = donated
                program = with_donation(program, self.donate)
        return self.run_program(sized_program(program, inputs), inputs, outputs)

    def check_target(self, target: str) -> None:
        """Refuse (DIST0609) a target, in TVM's JSON form, whose code the engine does not run."""
        check_engine_runs(target, f"engine {self.name}")

    def check_trace(self) -> None:
        """Refuse (DIST0605) a trace of an engine that records none."""
        if self.trace is not None and not self.records_trace:
            problem = "it records no trace of a run"
            remedy = 'Use the engine "threads", "mpi" or "torch".'
            raise EngineError("DIST0605", problem, location=f"engine {self.name}", remedy=remedy)

    def run_program(self, program: Runnable, inputs: Inputs, outputs: str) -> list[Any]:
        """Split the inputs, run, and join the outputs."""
        entries = program.entries
        results = self.run_local(program, bind_inputs(entries, inputs, program.stored))
        if outputs == "whole":
            return gather_outputs(entries, results)
        return list(sharded_outputs(entries, results))

    @abstractmethod
    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Run every rank's entry function on its local inputs.

        Sets :attr:`collectives`.
        """

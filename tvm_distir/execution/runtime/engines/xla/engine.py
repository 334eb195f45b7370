# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run programs with the engine ``xla``, a second compiler with separate collectives."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from itertools import chain
from typing import Any

from tvm_distir.core.ir import mesh_axes, mesh_names
from tvm_distir.execution.runtime.dispatch.packed_names import TVM
from tvm_distir.execution.runtime.engines.base import Engine, LocalResults
from tvm_distir.execution.runtime.program.inputs import Inputs, bind_inputs
from tvm_distir.execution.runtime.program.joining import gather_outputs
from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable
from tvm_distir.execution.runtime.program.sharded import sharded_outputs
from tvm_distir.execution.runtime.program.symbolic_sizes import SizedProgram
from tvm_distir.models import to_stablehlo
from tvm_distir.support import EngineError

from .jax_job import JaxJob, is_jax_job
from .process import TIMEOUT_S, XlaCollective, missing, process_turn, running


class XlaEngine(Engine):
    """Runs level-5 modules of a mesh with XLA:CPU, as replicas on as many host devices.

    In a process that has joined a JAX job (``jax.distributed.initialize``) it runs in this
    process, on the devices of the job, whatever their kind. Results are then on every process, or
    with ``outputs="sharded"`` on the process of their device.

    XLA merges collectives and reduces in other orders: its results are compared within
    tolerances, and what ran is not counted as the other engines count it.

    Parameters
    ----------
    python : str, optional
        An interpreter that can import ``jax``; by default this interpreter.
    timeout_s : float
        The time that its process may take to start, and to compile and run a program.

    Attributes
    ----------
    ran : list of XlaCollective
        The collectives in the program that XLA compiled last.
    """

    name = "xla"
    dispatch = TVM
    counting = False

    def __init__(self, python: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._python = python or sys.executable
        self.timeout_s = timeout_s
        self.ran: list[XlaCollective] = []

    @property
    def compiled(self) -> dict[str, int]:
        """Return how many collectives of each kind (``all-reduce``, ...) XLA compiled last."""
        return dict(Counter(collective.kind for collective in self.ran))

    def check_available(self) -> None:
        """Refuse (DIST0111) to begin without JAX in this environment, where none else is named."""
        if self._python == sys.executable and importlib.util.find_spec("jax") is None:
            raise missing(self._python)

    def run(self, dist: Any, inputs: Inputs, outputs: str = "whole") -> list[Any]:
        """Run a module; refuse (DIST0605) a program without IR."""
        if isinstance(dist, Runnable):
            self._checked(dist)
        return super().run(dist, inputs, outputs)

    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Run every rank's entry function on its local inputs.

        Raises
        ------
        DependencyError
            DIST0111 without JAX.
        EngineError
            DIST0605 several meshes, names of meshes beyond ASCII, or a program without IR; DIST0606
            XLA refuses it, DIST0615 its process ended, DIST0617 it took too long and was killed.
        ModelError
            DIST0380 what has no form in StableHLO.
        """
        self.check_available()
        ranks, text = self._checked(program)
        arrays = [a for rank in ranks for a in local.of(program.entries[0], rank)]
        with process_turn():
            worker = running(self._python, len(ranks), self.timeout_s)
            results, self.ran = worker.run(
                text, arrays, len(ranks), replicas=True, timeout_s=self.timeout_s
            )
        width = len(results) // len(ranks)
        return {rank: results[i * width : (i + 1) * width] for i, rank in enumerate(ranks)}

    def run_program(self, program: Runnable, inputs: Inputs, outputs: str) -> list[Any]:
        """Run in the JAX job that this process has joined, or else in a process of its own.

        In a job all processes must call it with the same program.

        Raises
        ------
        EngineError
            As :meth:`run_local`; DIST0631 when the processes do not run the same, DIST0632 for too
            few devices.
        """
        if isinstance(program, SizedProgram):
            program = program.bound()
        if not is_jax_job():
            return super().run_program(program, inputs, outputs)
        ranks, text = self._checked(program)
        job = JaxJob(ranks)
        job.check_program(f"{program.fingerprint} {outputs}")
        entries = program.entries
        local = bind_inputs(entries, inputs, program.stored)
        inputs_of = {rank: local.of(entries[0], rank) for rank in job.local_ranks}
        results, ran = job.run(text, inputs_of)
        self.ran = [XlaCollective(*entry) for entry in ran]
        if outputs == "sharded":
            return list(sharded_outputs(entries, results))
        return gather_outputs(entries, job.gathered(results, ranks))

    @staticmethod
    def _checked(program: Runnable) -> tuple[list[int], str]:
        """Return the device ids and the text of a program, if it can be run."""
        mod: Any = getattr(program, "mod", None)
        if mod is None or len(program.entries) != 1:
            problem = "a compiled program" if mod is None else f"{len(program.entries)} programs"
            raise _unfit(f"runs a single module on a single mesh, not {problem}")
        for name in (*mesh_names(mod), *chain(*mesh_axes(mod))):
            if not name.isascii():  # XLA ends itself where it reads one
                raise _unfit(f'supports only ASCII names of meshes and axes, not "{name}"')
        return sorted(program.entries[0].ranks), to_stablehlo(mod, "replicas")


def _unfit(problem: str) -> EngineError:
    remedy = 'Use the engine "threads" or "virtual".'
    return EngineError("DIST0605", f"the engine xla {problem}", location="engine", remedy=remedy)

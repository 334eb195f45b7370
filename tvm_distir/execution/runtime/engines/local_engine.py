# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Share the memory of inputs and outputs with ranks that are in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from tvm_distir.execution.runtime.program.local_inputs import LocalInputs
from tvm_distir.execution.runtime.program.runnable import Runnable

from .base import Engine, LocalResults
from .bound_tensors import BoundTensors

RankTensors = Mapping[int, list[Any]]
"""TVM tensors, or objects, by rank, in the order of ``dist.io``."""


class LocalEngine(Engine):
    """An engine whose ranks are in this process.

    Arrays that are aligned and contiguous are not copied, unless the program may overwrite them;
    donated ones are overwritten.
    """

    takes_objects = True

    def run_local(self, program: Runnable, local: LocalInputs) -> LocalResults:
        """Run every rank's entry function on its local inputs.

        Raises
        ------
        EngineError
            As :meth:`run_tensors`.
        """
        entries = program.entries
        arrays = {rank: local.of(entry, rank) for entry in entries for rank in entry.ranks}
        bound = BoundTensors(entries, arrays, self.donated, program.overwritten)
        results = self.run_tensors(program, bound.tensors)
        return {rank: bound.outputs(results[rank]) for rank in results}

    @abstractmethod
    def run_tensors(self, program: Runnable, tensors: RankTensors) -> RankTensors:
        """Run every rank's entry function on tensors, which it may overwrite as it states.

        Raises
        ------
        EngineError
            The first failure of any rank: DIST0610 to DIST0613, or what the rank raised.
        """

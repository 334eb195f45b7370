# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make plans by a strategy, which a search compares with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import ir

from tvm_distir.core.plan import DEFAULT_MESH, MeshSpec, Plan, Schedule
from tvm_distir.hardware import System
from tvm_distir.planning.strategies.composition import compose
from tvm_distir.planning.strategies.pipelining import in_micro_batches, schedule_of
from tvm_distir.planning.strategies.registry import StrategySpec, parse

Make = Callable[[ir.IRModule, Mapping[str, int], System], Plan]
"""Makes a plan of a module on a mesh."""
Compare = tuple[str, Make | Plan]
"""Name of what to compare with; what makes its plan of a module on a mesh, or the plan."""


@dataclass(frozen=True)
class StrategyMaker:
    """Maker of the plans of strategies without stages.

    Attributes
    ----------
    text : str
        The strategies, as the command line takes them.
    micro_batches : int, optional
        The number of micro-batches; None: as the strategies say.
    """

    text: str
    micro_batches: int | None = None

    @property
    def specs(self) -> list[StrategySpec]:
        """Return the strategies."""
        specs = list(parse(self.text))
        count = self.micro_batches
        return specs if count is None else in_micro_batches(specs, count)

    def schedule(self, mesh: Mapping[str, int]) -> Schedule | None:
        """Return the schedule that the strategies ask for."""
        return schedule_of(self.specs, mesh)

    def __call__(self, mod: ir.IRModule, mesh: Mapping[str, int], system: System) -> Plan:
        """Return the plan of a module on a mesh."""
        return compose(mod, MeshSpec(DEFAULT_MESH, dict(mesh)), self.specs, system)

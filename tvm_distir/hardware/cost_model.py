# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Implement the cost model of the compiler by the times of a system."""

from __future__ import annotations

from pathlib import Path

from tvm.ir import IRModule

from tvm_distir.core.passes import CostModel
from tvm_distir.core.propagation import Costs, Decision
from tvm_distir.core.redistribution import StepCosts
from tvm_distir.hardware.auto_sharding.labeller import Labeller

from .cost_weights import costs_for
from .redistribution_times import RedistributionTimes
from .systems.system import System


class SystemCostModel(CostModel):
    """Costs that are the times of a system.

    Parameters
    ----------
    system : System
    """

    def __init__(self, system: System) -> None:
        self.system = system

    @classmethod
    def of(cls, system: System | str | Path | None) -> SystemCostModel:
        """Return the cost model of a system, by name or path too; errors as ``System.required``."""
        return cls(System.required(system))

    def placement_costs(self, mod: IRModule) -> Costs:
        """Implement :meth:`CostModel.placement_costs`."""
        return costs_for(mod, self.system)

    def redistribution_costs(self) -> StepCosts:
        """Implement :meth:`CostModel.redistribution_costs`."""
        return RedistributionTimes(self.system)

    def cheapest_placements(self, mod: IRModule, gap: float, memory_bytes: int | None) -> Decision:
        """Implement :meth:`CostModel.cheapest_placements`."""
        return Labeller(mod, self.system).run(gap, memory_bytes).decision

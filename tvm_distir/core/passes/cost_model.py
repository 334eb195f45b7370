# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define what the passes ask a model of the hardware, and find the model of a named system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tvm.ir import IRModule

from tvm_distir.core.propagation.decision import Decision
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.core.redistribution.costs import StepCosts
from tvm_distir.support import Registry

_PROVIDERS = Registry(
    "tvm_distir.cost_models", {"system": "tvm_distir.hardware.cost_model:SystemCostModel.of"}
)
"""The callable that makes a cost model of the name or description of a system."""


class CostModel(ABC):
    """Costs of communication and work on some hardware, as the passes need them.

    A pass that is given none counts bytes: :class:`~.solve.cost.Costs` with its defaults, and
    :class:`~.costs.RingCosts`.
    """

    option_word: ClassVar[str] = "system"
    """What a pass option of this type is called."""

    @staticmethod
    def load(system: object) -> CostModel:
        """Return the cost model of a description of a cluster, or of its name or path."""
        model: CostModel = _PROVIDERS.load("system")(system)
        return model

    @staticmethod
    def resolve(system: object) -> CostModel | None:
        """Return a cost model of what a caller names a system.

        Parameters
        ----------
        system : CostModel, System, str or None
            A cost model, a description of a cluster, or the name or path of one.

        Raises
        ------
        UsageError
            DIST0155 for what is no system.
        HardwareError
            DIST07xx for a system that cannot be read.
        """
        if system is None or isinstance(system, CostModel):
            return system
        return CostModel.load(system)

    @abstractmethod
    def placement_costs(self, mod: IRModule) -> Costs:
        """Return the weights with which propagation decides a module with meshes."""

    @abstractmethod
    def redistribution_costs(self) -> StepCosts:
        """Return the costs of the steps of a redistribution."""

    @abstractmethod
    def cheapest_placements(self, mod: IRModule, gap: float, memory_bytes: int | None) -> Decision:
        """Return the placements of all values of least time.

        Parameters
        ----------
        mod : IRModule
            The module, at level 2, without branches.
        gap : float
            The share above the least time that is accepted.
        memory_bytes : int, optional
            The bytes that a device may store.

        Raises
        ------
        InfeasibleError
            DIST0801 where nothing fits into the memory, DIST0802 where the annotations allow
            nothing.
        PlanError
            DIST0237 where a function is on several meshes.
        """

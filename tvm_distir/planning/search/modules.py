# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Make the modules of a search: a model at any batch, and its training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir

from tvm_distir.core.ir import check_module
from tvm_distir.core.plan import FULL, Schedule
from tvm_distir.core.rewriting import plain_calls
from tvm_distir.hardware import System
from tvm_distir.performance import Profile
from tvm_distir.planning.study import Study
from tvm_distir.support import InfeasibleError, UsageError
from tvm_distir.transforms import train_step

Make = Callable[[int], ir.IRModule]


class Source:
    """Source of modules for candidates; each is made once.

    Parameters
    ----------
    model : IRModule, or callable
        A forward model; or what makes it, given the samples of a batch.
    batch : int, optional
        Samples of a whole step; None: those of the module that is given.
    train : mapping, optional
        Keywords of ``td.train_step``; None: the model is run forward.
    system : System
        The system by which recomputation is chosen.
    """

    def __init__(
        self,
        model: ir.IRModule | Make,
        batch: int | None,
        train: Mapping[str, Any] | None,
        system: System,
    ) -> None:
        self.train, self.system = train, system
        if not callable(model):
            check_module(model, "td.search")
        self._make = None if isinstance(model, ir.IRModule) else model
        self._cache: dict[Any, ir.IRModule] = {}
        self.batch: int | None = None
        if isinstance(model, ir.IRModule):
            self._cache[None] = self._studied(model)
            if batch is not None:
                problem = "both a batch and a module are given, and the batch of a module is fixed"
                remedy = "Give a function from a batch to a module, or no batch."
                raise UsageError("DIST0151", problem, location="search", remedy=remedy)
        elif batch is None:
            raise UsageError(
                "DIST0151", "no batch is given for a function from a batch to a module",
                location="search", remedy="Give the number of samples of a full step.",
            )  # fmt: skip
        else:
            self.batch = batch

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without modules that can be made again, for workers."""
        modules = {None: self._cache[None]} if self.batch is None else {}
        return {**self.__dict__, "_cache": modules}

    def forward(self, micro_batches: int) -> ir.IRModule:
        """Return the model with the samples of a micro-batch."""
        key = None if self.batch is None else self.batch // micro_batches
        if key not in self._cache:
            assert self._make is not None and key is not None
            self._cache[key] = self._studied(self._make(key))
        return self._cache[key]

    def _studied(self, model: ir.IRModule) -> ir.IRModule:
        """Return a model with its attention as the kernels of the system want it."""
        return Study(plain_calls(model), system=self.system).forward

    def module(self, schedule: Schedule | None, recompute: str | Mapping[str, str]) -> ir.IRModule:
        """Return the module to distribute; ``recompute`` as for ``td.train_step``."""
        model = self.forward(1 if schedule is None else schedule.micro_batches)
        if self.train is None:
            return model
        key = (schedule, recompute if isinstance(recompute, str) else tuple(recompute.items()))
        if key not in self._cache:
            try:
                self._cache[key] = self._step(model, schedule, recompute)
            except InfeasibleError:  # by an estimate that does not know the placements
                self._cache[key] = self._step(model, schedule, FULL)
        return self._cache[key]

    def _step(
        self, model: ir.IRModule, schedule: Schedule | None, recompute: str | Mapping[str, str]
    ) -> ir.IRModule:
        """Return the training step of a model."""
        return train_step(
            model, schedule=schedule, recompute=recompute, system=self.system,
            recomputed_ops=Profile.resolve(self.system.kernels).recomputed_ops,
            **(self.train or {}),
        )  # fmt: skip

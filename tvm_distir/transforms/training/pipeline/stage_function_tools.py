# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Provide the shared tools of the writers of stages: functions, updates, sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax
from tvm.relax import BlockBuilder, Expr, Var

from tvm_distir.core.ir.attributes import ACCUMULATE_PHASE, PHASE_ATTR, REPEAT_ATTR
from tvm_distir.core.plan import Schedule
from tvm_distir.core.rewriting import tuple_of
from tvm_distir.transforms.training.autodiff.function_table import (
    NamedFunctions,
    private_function,
    write_function,
)
from tvm_distir.transforms.training.autodiff.split_backward import Splitter
from tvm_distir.transforms.training.optimizers.protocol import cast
from tvm_distir.transforms.training.recompute.pairs import Differentiator
from tvm_distir.transforms.training.step.recipe import Recipe
from tvm_distir.transforms.training.step.updates import Updates

from .stage_function_params import summed


@dataclass(eq=False)
class Tools:
    """Tools that the writers of all stages share.

    Attributes
    ----------
    recipe : Recipe
    functions : NamedFunctions
        Gets the functions of the phases.
    pairs : Differentiator
    schedule : Schedule
    known : frozenset of str
        The names of the model's functions.
    share : float
        The factor of the sum of all micro-batches' losses.
    """

    recipe: Recipe
    functions: NamedFunctions
    pairs: Differentiator
    schedule: Schedule
    known: frozenset[str]
    share: float

    def __post_init__(self) -> None:
        self.splitter = Splitter(self.functions)
        self._updates: dict[Any, ir.GlobalVar] = {}

    def updates(self, builder: BlockBuilder) -> Updates:
        """Return the writer of updates, for which similar layers share a function."""
        return Updates(builder, self.recipe.optimizer, self.functions, self._updates)

    def mark(self, gv: ir.GlobalVar, phase: str) -> None:
        """Record the phase on a function."""
        fn = self.functions.of[str(gv.name_hint)]
        fn = fn.with_attr(PHASE_ATTR, phase).with_attr(REPEAT_ATTR, self.schedule.micro_batches)
        self.functions.of[str(gv.name_hint)] = fn

    def accumulated(
        self,
        builder: BlockBuilder,
        stage: str,
        terms: Sequence[Var],
        phase: str = ACCUMULATE_PHASE,
    ) -> list[Var]:
        """Emit the sums over all micro-batches, in float32 for half precision."""
        params = [relax.Var(f"term{i}", term.ty) for i, term in enumerate(terms)]

        def write(inside: BlockBuilder) -> Expr:
            return tuple_of([cast(inside, p, str(summed(p.ty).dtype)) for p in params])

        title = f"{stage}_{phase}"
        bindings, result = write_function(params, write)
        gv = self.functions.add(title, private_function(title, params, bindings, result))
        self.mark(gv, phase)
        sums = builder.emit(ir.Call(gv, list(terms)), "sums")
        return [builder.emit(relax.TupleGetItem(sums, k)) for k in range(len(terms))]

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Classify the parameters of a model in a step: data, weights, statistics and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tvm import relax
from tvm.relax import Var

from tvm_distir.core.ir import known_shape, tensor_type
from tvm_distir.core.ir.attributes import param_names
from tvm_distir.core.plan import plain_name
from tvm_distir.transforms.step_faults import wrong_argument
from tvm_distir.transforms.training.autodiff.function_table import NamedFunctions
from tvm_distir.transforms.training.autodiff.reverse import is_float
from tvm_distir.transforms.training.autodiff.rules.batch_norms import running_statistics

from .objective import Objective, unfit
from .recipe import Recipe


class Parameters:
    """Parameters of a forward function, by kind.

    Parameters
    ----------
    forward : Function
        The function ``main``, with fresh variables.
    data : sequence of int
        The positions of its parameters that are data.
    streams : int
        The number of trailing parameters that :func:`.dropouts.with_streams` added: the state of
        dropouts, then the first stream.
    recipe : Recipe
    functions : NamedFunctions
        The functions of the model.

    Attributes
    ----------
    objective : Objective
    data : list of (str, Var)
        The data inputs; those of the loss come last.
    others : list of (str, Var)
        The other parameters in order; the state of dropouts is among them.
    dropout, stream : Var or None
    running : set of Var
        Running statistics of batch norms.
    trained : list of (str, Var)
        Weights that the step updates.

    Raises
    ------
    ModelError
        DIST0351 no such loss, a pattern that no weight fits, or no weight is trained.
    """

    def __init__(
        self,
        forward: relax.Function,
        data: Sequence[int],
        streams: int,
        recipe: Recipe,
        functions: NamedFunctions,
    ) -> None:
        self.forward = forward
        self.objective = Objective(recipe.losses, forward, functions)
        pairs = list(zip(param_names(forward), forward.params[:], strict=True))
        self.stream: Any = pairs.pop()[1] if streams > 1 else None
        self.dropout: Any = pairs[-1][1] if streams else None
        self.data = [p for i, p in enumerate(pairs) if i in data] + self.objective.inputs
        self.others = [p for i, p in enumerate(pairs) if i not in data]
        self.running = running_statistics(forward)
        weights = [(n, v) for n, v in self.others if is_float(v.ty) and v not in self.running]
        recipe.check_frozen([name for name, _ in weights])
        self.trained = [(n, v) for n, v in weights if recipe.trains(n)]
        if not self.trained:
            raise unfit("no weight is trained")

    @property
    def batch(self) -> int | None:
        """Return the size of the batch: of the first dim of the first data input with dims."""
        shapes = [known_shape(v.ty) for _, v in self.data if tensor_type(v.ty) is not None]
        first = next((shape[0] for shape in shapes if shape), None)
        return first if isinstance(first, int) else None

    @property
    def sliced(self) -> dict[str, Var]:
        """Return the data of which each micro-batch has its rows: those with the batch in front."""
        shapes = ((n, v, known_shape(v.ty)) for n, v in self.data if tensor_type(v.ty) is not None)
        batch = self.batch
        return {
            name: var
            for name, var, shape in shapes
            if shape and isinstance(shape[0], int) and shape[0] == batch
        }


def check_names(names: Iterable[str]) -> None:
    """Reject a step of which two parameters share a name (ModelError DIST0351)."""
    twice = [name for name, count in Counter(map(plain_name, names)).items() if count > 1]
    if twice:
        problem = f'the parameter "{twice[0]}" has the name of a parameter that the step adds'
        raise wrong_argument(problem, "Rename it.")

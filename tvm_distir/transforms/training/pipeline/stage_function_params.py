# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Declare the parameters of a stage's function: arrivals, data, weights, states and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.relax import Var

from tvm_distir.core.plan import ACTIVATION, GRADIENT, STREAM, TOTAL, plain_name
from tvm_distir.transforms.training.optimizers.protocol import RATE, STEP
from tvm_distir.transforms.training.step import dropouts
from tvm_distir.transforms.training.step.objective import HALF
from tvm_distir.transforms.training.step.recipe import Recipe
from tvm_distir.transforms.training.step.scaling import Scaling
from tvm_distir.transforms.training.step.updates import UpdatedWeight

from .split_loss import BatchSum
from .stages import ModelStage

SQUARES = "squares"
"""Name of the sum over stages from which the norm of all gradients follows."""


@dataclass(frozen=True)
class StageInputs:
    """Stage, and its share of the full step.

    Attributes
    ----------
    stage : ModelStage
    names : mapping of Var to str
        The names of the full model's parameters, except for that of a stream of random numbers.
    trained : frozenset of Var
        Weights that the step updates.
    shared : frozenset of Var
        Trained weights that other stages have too.
    counted : frozenset of Var
        Trained weights whose gradients this stage counts in the norm of all.
    unread : tuple of Var
        The trained weights that no stage reads, if this is the first stage.
    layered : frozenset of str
        Functions of layers that the whole model calls more than once.
    last : bool
    mesh : str
        The name of the mesh that it is to be placed on; empty where there is a single mesh.
    dropout : Var or None
        The state of dropouts, of the whole model.
    sums : mapping of Var to BatchSum
        The sums over the whole batch that the loss reads.
    """

    stage: ModelStage
    names: Mapping[Var, str]
    trained: frozenset[Var]
    shared: frozenset[Var]
    counted: frozenset[Var]
    unread: tuple[Var, ...]
    layered: frozenset[str]
    last: bool
    mesh: str = ""
    dropout: Var | None = None
    sums: Mapping[Var, BatchSum] = field(default_factory=dict)

    @property
    def batch_sums(self) -> Mapping[Var, BatchSum]:
        """Return the sums over the whole batch that the stage reads, each behind what it reads."""
        return self.sums if self.last else {}

    @property
    def data(self) -> tuple[Var, ...]:
        """Return the data that the stage reads, those of the sums over the batch included."""
        read = (*self.stage.data, *(v for term in self.batch_sums.values() for v in term.args))
        return tuple(v for v in dict.fromkeys(read) if v not in self.batch_sums)

    @property
    def alike(self) -> tuple[Any, ...]:
        """Return a key; stages with equal keys share a function."""
        flags = [
            (w in self.trained, w in self.shared, w in self.counted) for w in self.stage.weights
        ]
        name, arrivals = str(self.stage.function.name_hint), len(self.stage.activations)
        return name, arrivals, tuple(flags), self.unread, self.last, self.mesh

    @property
    def stream(self) -> str:
        """Return the first random-number stream of the stage."""
        return f"{STREAM}:{self.stage.first_stream}"


@dataclass
class StageSignature:
    """Parameters or results of a stage's function in order, with their kinds."""

    vars: list[Var] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, var: Var, name: str, note: str) -> Var:
        """Append an entry."""
        self.vars.append(var)
        self.names.append(name)
        self.notes.append(note)
        return var


class StageFunctionParams:
    """Parameters of a stage's function.

    Parameters
    ----------
    part : StageInputs
    recipe : Recipe
    scaling : Scaling

    Attributes
    ----------
    ports : StageSignature
    data_count : int
        The number of leading parameters that are not weights.
    activations, grads : list of Var
        The activations and gradients from other stages.
    data : dict of Var to Var
        The data, by the variables of the whole model.
    args : list of Var
        The arguments of the stage's private function; sums over the batch are variables of the
        whole model.
    weights : dict of Var to UpdatedWeight
        Trained ones, by the variables of the whole model.
    totals : dict of Var to Var
        The sum of all stages' gradients of each weight that other stages have too.
    squares : Var
        The sum of the squares of all gradients; a parameter where the recipe looks at it.
    step, rate, dropout : Var or None
    """

    def __init__(self, part: StageInputs, recipe: Recipe, scaling: Scaling) -> None:
        self.part, self.recipe, self.ports = part, recipe, StageSignature()
        stage = part.stage
        named = [part.names[v] for v in (*stage.weights, *part.data) if v in part.names]
        used_names = set(map(plain_name, named))

        def fresh(wish: str) -> str:
            while wish in used_names:
                wish += "_"
            used_names.add(wish)
            return wish

        def arrivals(kind: str, wish: str, arrivals_in: Sequence[Var]) -> list[Var]:
            variables = []
            for j, var in enumerate(arrivals_in):
                name = fresh(wish if len(arrivals_in) == 1 else f"{wish}_{j}")
                variables.append(self.ports.add(relax.Var(name, var.ty), name, f"{kind}:{j}"))
            return variables

        self.activations = arrivals(ACTIVATION, "x", stage.activations)
        self.grads = arrivals(GRADIENT, "grad", () if part.last else stage.outputs)
        self.data: dict[Var, Var] = {}
        for var in part.data:
            if var in part.names:
                self.data[var] = self._like(var)
            else:
                stream = relax.Var(fresh(dropouts.STREAM), var.ty)
                self.data[var] = self.ports.add(stream, str(stream.name), part.stream)
        float32 = relax.TensorType([], "float32")
        self.rate: Any = None
        if recipe.rate_input:
            self.rate = self.ports.add(relax.Var(RATE, float32), RATE, RATE)
        self.squares = relax.Var(fresh("squares_total"), float32)
        if scaling.looks_at_gradients:
            self.ports.add(self.squares, str(self.squares.name), f"{TOTAL}:{SQUARES}")
        self.data_count = len(self.ports.vars)
        param_of = {var: self._like(var) for var in (*stage.weights, *part.unread)}
        self.dropout = param_of.get(part.dropout)
        data = [self.data.get(var, var) for var in stage.data]
        self.args = [*self.activations, *data, *(param_of[var] for var in stage.weights)]
        self.weights: dict[Var, UpdatedWeight] = {}
        self.totals: dict[Var, Var] = {}
        for var, mine in param_of.items():
            if var in part.trained:
                self._with_states(var, UpdatedWeight(part.names[var], mine))
        for name, var in scaling.params:
            self.ports.add(var, name, name)
        self.step: Any = None
        if recipe.optimizer.counts:
            self.step = self.ports.add(relax.Var(STEP, relax.TensorType([], "int64")), STEP, STEP)

    def _like(self, var: Var) -> Var:
        name = self.part.names[var]
        return self.ports.add(relax.Var(plain_name(name), var.ty), name, name)

    def _with_states(self, var: Var, weight: UpdatedWeight) -> None:
        for slot, ty in self.recipe.optimizer.states(weight.var.ty).items():
            name = f"{weight.name}.{slot}"
            weight.names.append(name)
            weight.states.append(self.ports.add(relax.Var(plain_name(name), ty), name, name))
        self.weights[var] = weight
        if var in self.part.shared:
            name = f"{weight.name}.{TOTAL}"
            total = relax.Var(plain_name(name), summed(weight.var.ty))
            self.totals[var] = self.ports.add(total, name, f"{TOTAL}:{weight.name}")

    @property
    def states(self) -> dict[str, list[str]]:
        """Return the names of the values that are placed as each weight."""
        names_of = {w.name: list(w.names) for w in self.weights.values()}
        for var in self.totals:
            names_of[self.weights[var].name].append(f"{self.weights[var].name}.{TOTAL}")
        return {name: names for name, names in names_of.items() if names}


def summed(ty: ir.Type) -> ir.Type:
    """Return the type of a sum over micro-batches."""
    dtype = str(ty.dtype)
    return relax.TensorType(ty.shape, "float32" if dtype in HALF else dtype)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the function of a stage: forward and backward of a micro-batch, sums, updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir, relax
from tvm.relax import Expr, Var
from tvm.relax.op import add, multiply, ones, zeros

from tvm_distir.core.ir.attributes import (
    ACCUMULATE_PHASE,
    BACKWARD_PHASE,
    COUNT_PHASE,
    EACH_PHASE,
    FORWARD_PHASE,
    INPUTS_ATTR,
    NUM_INPUT_ATTR,
    PARAM_NAMES_ATTR,
    STAGE_KIND_ATTR,
    TRAINING_ATTR,
    WEIGHT_PHASE,
)
from tvm_distir.core.plan import ACTIVATION, GRADIENT, NONE, PART, TOTAL, plain_name
from tvm_distir.core.rewriting import scalar, tuple_of
from tvm_distir.transforms.training.autodiff.function_table import without_unread
from tvm_distir.transforms.training.autodiff.split_backward import SplitBackward
from tvm_distir.transforms.training.autodiff.tape import ForwardBackward
from tvm_distir.transforms.training.optimizers.protocol import cast
from tvm_distir.transforms.training.step.dropouts import DROPOUT
from tvm_distir.transforms.training.step.scaling import Scaling
from tvm_distir.transforms.training.step.updates import (
    Groups,
    Owner,
    Updates,
    updated_name,
)

from .stage_function_params import SQUARES, StageFunctionParams, StageInputs, StageSignature, summed
from .stage_function_tools import Tools

LOSS = "loss"
"""Name of the output that is the loss of the whole batch."""


class StageWriter:
    """Writer of the function of a stage.

    Parameters
    ----------
    part : StageInputs
    tools : Tools

    Attributes
    ----------
    params : RoleParams
    outputs : StageSignature
        The results of the function, once it is written.
    name : str
    pair : ForwardBackward
        The passes of the stage's private function.
    split_backward : SplitBackward
        The parts of its backward pass, where gradients of weights are a separate phase.
    """

    def __init__(self, part: StageInputs, tools: Tools) -> None:
        self.part, self.tools, self.recipe = part, tools, tools.recipe
        self.functions, self.pairs = tools.functions, tools.pairs
        self.builder = relax.BlockBuilder()
        self.scaling = Scaling(self.recipe)
        self.params, self.outputs = (
            StageFunctionParams(part, self.recipe, self.scaling),
            StageSignature(),
        )
        self.weights, self.title = self.params.weights, str(part.stage.function.name_hint)
        self.updated: dict[str, str] = {}
        self.gradients: dict[str, str] = {}
        self.terms: dict[str, str] = {}
        self.sums: dict[str, str] = {}
        self.pair: ForwardBackward
        self.split_backward: SplitBackward
        self.name = ""

    def run(self, name: str) -> relax.Function:
        """Return the function, and add the functions that it calls to the others."""
        builder, self.name = self.builder, name
        with builder.function(name, self.params.ports.vars):
            with builder.dataflow():
                self._body()
            builder.emit_func_output(relax.Tuple(self.outputs.vars))
        fn = without_unread(builder.get()[name])
        ports = self.params.ports
        policies, known = self.pairs.policies, self.tools.known
        known_policies = {name: text for name, text in policies.items() if name in known}
        attrs = {
            PARAM_NAMES_ATTR: ports.names,
            INPUTS_ATTR: ports.names[: self.params.data_count],
            NUM_INPUT_ATTR: self.params.data_count,
            STAGE_KIND_ATTR: {
                "params": ports.notes,
                "results": self.outputs.notes,
                "values": [str(var.name) for var in self.outputs.vars],
            },
            TRAINING_ATTR: {
                "updated": self.updated,
                "states": self.params.states,
                "again": {},
                "gradients": self.gradients,
                "terms": self.terms,
                "sums": self.sums,
                **({"recompute": known_policies} if known_policies else {}),
            },
        }
        return fn.with_attr(attrs)

    def _out(self, value: Expr, name: str, note: str) -> Var:
        return self.outputs.add(self.builder.emit_output(value, name), name, note)

    def _body(self) -> None:
        stage, builder = self.part.stage, self.builder
        differentiable = [True] * len(self.params.activations) + [False] * len(stage.data)
        differentiable += [v in self.part.trained for v in stage.weights]
        if stage.statistics:
            self.pairs.leading[str(stage.function.name_hint)] = len(stage.outputs)
        pair = self.pairs.pair_with(str(stage.function.name_hint), tuple(differentiable), NONE)
        self.pair = pair
        self._batch_sums()
        self.tools.mark(pair.forward, FORWARD_PHASE)
        results = builder.emit(ir.Call(pair.forward, self.params.args), "forward")
        result = builder.emit(relax.TupleGetItem(results, 0)) if pair.saves else results
        saved = builder.emit(relax.TupleGetItem(results, 1), "saved") if pair.saves else None
        loss = self._forward_results(result)
        gradients, outputs = {}, []
        for i, part in zip(pair.given, self._backward(pair, loss, saved), strict=True):
            if i < len(self.params.activations):
                name = f"{self.params.activations[i].name}_grad"
                outputs.append((part, name, f"{GRADIENT}:{i}"))
            else:
                at = i - len(self.params.activations) - len(stage.data)
                gradients[stage.weights[at]] = part
        if loss is not None:  # what the forward pass gives comes first
            (total,) = self.tools.accumulated(self.builder, self.title, [loss])
            share = self.tools.share
            dtype = str(total.ty.dtype)
            self._out(total if share == 1 else multiply(total, scalar(share, dtype)), LOSS, LOSS)
        for output in outputs:
            self._out(*output)
        self._end(gradients)

    def _batch_sums(self) -> None:
        """Emit the sums over the whole batch that the loss reads."""
        env = dict(self.params.data)
        for var, term in self.part.batch_sums.items():
            self.tools.mark(term.function, COUNT_PHASE)
            call = ir.Call(term.function, [env[arg] for arg in term.args])
            env[var] = self.builder.emit(call, str(var.name))
        self.params.args = [env.get(arg, arg) for arg in self.params.args]

    def _forward_results(self, result: Expr) -> Any:
        """Output statistics and values for later stages; return the loss, if it is computed."""
        outputs, statistics = self.part.stage.outputs, self.part.stage.statistics
        is_single = len(outputs) + len(statistics) == 1
        for j, var in enumerate(statistics, len(outputs)):
            name = self.part.names[var]
            new = self._out(relax.TupleGetItem(result, j), updated_name(name), name)
            self.updated[name] = str(new.name)
        if self.part.last:
            return result if is_single else self.builder.emit(relax.TupleGetItem(result, 0))
        for j, _ in enumerate(outputs):
            value = result if is_single else relax.TupleGetItem(result, j)
            self._out(value, "y" if len(outputs) == 1 else f"y_{j}", f"{ACTIVATION}:{j}")
        return None

    def _backward(self, pair: ForwardBackward, loss: Any, saved: Var) -> list[Var]:
        """Emit the backward pass, split or not; return the gradients in their order."""
        if self.part.last:
            grad = self._seed(loss)
        else:
            grads = self.params.grads
            grad = grads[0] if len(grads) == 1 else tuple_of(grads)
        first = [grad] if saved is None else [grad, saved]
        args = [*first, *(self.params.args[i] for i in pair.needed)]
        if not self.tools.schedule.splits_backward:
            self.tools.mark(pair.backward, BACKWARD_PHASE)
            return self._fields(pair.backward, args, "backward")
        early = [k for k, i in enumerate(pair.given) if i < len(self.params.activations)]
        split = self.split_backward = self.tools.splitter.split(pair.backward, early)
        self.tools.mark(split.inputs, BACKWARD_PHASE)
        self.tools.mark(split.weights, WEIGHT_PHASE)
        *first_gradients, crossing = self._fields(split.inputs, args, "backward")
        later_gradients = self._fields(split.weights, [crossing], "weights")
        numbers, gradients = (*split.first, *split.later), (*first_gradients, *later_gradients)
        gradient_of = dict(zip(numbers, gradients, strict=True))
        return [gradient_of[k] for k in range(len(pair.given))]

    def _fields(self, gv: ir.GlobalVar, args: Sequence[Expr], name: str) -> list[Var]:
        """Emit a call and the fields of its result."""
        call = self.builder.emit(ir.Call(gv, list(args)), name)
        fields = (relax.TupleGetItem(call, k) for k in range(len(call.ty.fields)))
        return [self.builder.emit(field) for field in fields]

    def _seed(self, loss: Expr) -> Var:
        """Return the gradient of a micro-batch's loss: its share in the loss of the batch."""
        dtype = str(loss.ty.dtype)
        share = 1.0 if self.tools.schedule.stash else self.tools.share
        if not self.recipe.dynamic:
            factor = scalar(self.recipe.scale * share, dtype)
            return self.builder.emit(multiply(factor, ones((), dtype)))
        scale = cast(self.builder, self.scaling.params[0][1], dtype)
        return self.builder.emit(multiply(scale, scalar(share, dtype)))

    def _end(self, gradients: dict[Var, Var]) -> None:
        """Write the work that runs once: sums over micro-batches and stages, then new weights."""
        builder, part = self.builder, self.part
        phase = EACH_PHASE if self.tools.schedule.stash else ACCUMULATE_PHASE
        terms = list(gradients.values())
        self.terms = {self.weights[var].name: str(term.name) for var, term in gradients.items()}
        sums = self.tools.accumulated(builder, self.title, terms, phase) if terms else []
        totals = dict(zip(gradients, sums, strict=True))
        self.sums = {self.weights[var].name: str(total.name) for var, total in totals.items()}
        for var, weight in self.weights.items():
            if var in self.params.totals:
                title = f"{plain_name(weight.name)}_part"
                partial = self._out(totals[var], title, f"{PART}:{weight.name}")
                self.updated[f"{weight.name}.{TOTAL}"] = str(partial.name)
                totals[var] = self.params.totals[var]
                continue
            if var not in totals:
                ty = summed(weight.var.ty)
                totals[var] = builder.emit(zeros(ty.shape, str(ty.dtype)))
            self.gradients[weight.name] = str(totals[var].name)
        updates = self.tools.updates(builder)
        squares = None
        if self.scaling.looks_at_gradients:
            counted = {v: totals[v] for v in self.weights if v in part.counted}
            if counted:
                partial = updates.squares(self._groups(counted))
            else:
                partial = builder.emit(zeros((), "float32"))
            self._out(partial, "squares_part", f"{PART}:{SQUARES}")
            squares = self.params.squares
        self._update(updates, totals, squares)

    def _update(self, updates: Updates, totals: Mapping[Var, Var], squares: Any) -> None:
        builder, params = self.builder, self.params
        shared, counters = self.scaling.shared(builder, squares, params.step, params.rate)
        if params.dropout is not None:
            counters.append((DROPOUT, add(params.dropout, relax.const(1, "int64"))))
        new = updates.write(self._groups(totals), shared)
        counters += self.scaling.updated(builder)
        names = [w.name for w in self.weights.values()]
        names += [state for w in self.weights.values() for state in w.names]
        for name, value in [*((n, new[n]) for n in names), *counters]:
            self.updated[name] = str(self._out(value, updated_name(name), name).name)

    def _groups(self, gradients: Mapping[Var, Var]) -> Groups:
        """Return weights with their gradients, by the layer that they belong to."""
        groups: Groups = {}
        owners: dict[Var, tuple[Owner, str]] = {}
        layers = self.part.stage.layers
        reads = Counter(
            v for member in layers for v in dict.fromkeys(member.args) if v in gradients
        )
        for layer in self.part.stage.layers:
            if layer.name not in self.part.layered:
                continue
            owner, names = Owner(layer.name, layer.label), self.functions.of[layer.name].params
            for arg, name in zip(layer.args, names, strict=True):
                if reads[arg] == 1:  # of a gradient, by one layer
                    owners[arg] = owner, str(name.name)
        for var, gradient in gradients.items():
            weight = self.weights[var]
            at, label = owners.get(var, (None, weight.name))
            groups.setdefault(at, []).append((weight, gradient, label))
        return groups

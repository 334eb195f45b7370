# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the loss of a micro-batch such that micro-batches add up to the loss of the whole batch.

Sharding rules say what micro-batches of a batch are: parts of a dim, as on the devices of a mesh
axis. A value of the loss therefore has rows of the samples, or is the same in every micro-batch, or
is a term of a sum or of a mean over micro-batches. What reads such a term and is not linear in it
needs its sum over the whole batch. A sum of values of targets alone, as the number of targets that
count, is computed in front of the first micro-batch::

    loss = sum(losses * mask) / sum(mask)

    total = cls.loss_whole(mask)                    # in front of all micro-batches, and summed
    loss = sum(losses * mask) / total               # of a micro-batch; the sum of all is the loss
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tvm.error
from tvm import ir, relax
from tvm.relax import Binding, BlockBuilder, Expr, Var
from tvm.relax.op import astype, clip, divide, multiply, not_equal, take
from tvm.relax.op import sum as sum_op
from tvm.relax.op.nn import nll_loss

from tvm_distir.core.ir import FieldLeaves, flat_types, static_shape, tensor_type
from tvm_distir.core.ops import Rule, rule_of
from tvm_distir.core.rewriting import (
    leaves_of,
    scalar,
    substitute,
    tensor_args,
    variables,
)
from tvm_distir.support import DistIRError, ModelError, Steps, unrolled
from tvm_distir.transforms.training.autodiff.function_table import (
    NamedFunctions,
    only_read,
    private_function,
)
from tvm_distir.transforms.training.recompute.pairs import pure_bindings

from .loss_calls import State, linear_group, refusal, with_operands, with_two_samples

_NLL = "relax.nn.nll_loss"
_SAME, _SUM, _MEAN = "same", "sum", "mean"


class BatchSum(NamedTuple):
    """Sum over the whole batch of a value that depends on targets alone.

    Attributes
    ----------
    function : GlobalVar
        The function that computes the term of a micro-batch.
    args : tuple of Var
        Data of the model and of its loss, and other such sums.
    """

    function: ir.GlobalVar
    args: tuple[Var, ...]


@dataclass
class LossSplitter:
    """Writer of the loss of a micro-batch.

    Parameters
    ----------
    builder : BlockBuilder
        The builder inside of whose block the loss is written.
    functions : NamedFunctions
        The functions that the loss calls; those of sums over the batch are added.
    micro_batches, batch : int
        The number of micro-batches, and the samples of each.
    data : mapping of Var to bool
        The inputs of the loss, and whether micro-batches have different rows of them.

    Attributes
    ----------
    sums : dict of Var to BatchSum
        The sums over the whole batch that the loss reads.
    """

    builder: BlockBuilder
    functions: NamedFunctions
    micro_batches: int
    batch: int
    data: Mapping[Var, bool]
    sums: dict[Var, BatchSum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._states: dict[Var, list[State]] = {}
        self._batch_totals: dict[Var, Var] = {}
        self._leaves = FieldLeaves()
        self._of_data: list[Binding] = []
        self._known = set(self.data)
        for var, has_rows in self.data.items():
            self._states[var] = [0 if has_rows else _SAME]

    def run(self, bindings: Iterable[Binding], result: Expr, name: str) -> tuple[Var, float]:
        """Emit the loss; return its variable, and the factor of the sum over all micro-batches.

        Raises
        ------
        ModelError
            DIST0354 if micro-batches do not add up to the loss of the whole batch.
        """
        loss = unrolled(self._function(bindings, result, {}))
        (state,) = self._states_of(loss)
        if isinstance(state, int):
            raise refusal(loss, loss, "it is not a scalar")
        return self.builder.emit(loss, name), 1.0 if state == _SUM else 1.0 / self.micro_batches

    def _function(
        self, bindings: Iterable[Binding], result: Expr, env: dict[Any, Any]
    ) -> Steps[Any]:
        """Write the bindings of the loss, or of a function that it calls."""
        for binding in bindings:
            env[binding.var] = yield from self._value(binding.var, substitute(binding.value, env))
        return substitute(result, env)

    def _value(self, var: Var, value: Expr) -> Steps[Any]:
        """Write a value; return what stands for it."""
        if not isinstance(value, ir.Call):
            if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Tuple):
                return value.tuple_value.fields[int(value.index)]
            if isinstance(value, relax.TupleGetItem):
                return self._emit(var, value, self._fields(value))
            return value
        if isinstance(value.op, ir.GlobalVar):
            name = str(value.op.name_hint)
            fn = self.functions.of[name]
            env = dict(zip(fn.params, value.args, strict=True))
            return (yield self._function(pure_bindings(fn, name), fn.body.body, env))
        if str(value.op.name) == _NLL and str(value.attrs.reduction) == "mean":
            return self._weighted_mean(var, value)
        return self._call(var, value)

    def _emit(self, var: Var, value: Expr, states: Sequence[State]) -> Var:
        new = self.builder.emit(value, str(var.name))
        self._states[new] = list(states)
        if self._known.issuperset(variables(value)):
            self._known.add(new)
            self._of_data.append(relax.VarBinding(new, self.builder.lookup_binding(new)))
        return new

    def _fields(self, value: relax.TupleGetItem) -> list[State]:
        """Return the states of a field of a tuple."""
        leaves = self._leaves.of(value)
        return self._states_of(value.tuple_value)[leaves.start : leaves.stop]

    def _weighted_mean(self, var: Var, call: ir.Call) -> Var:
        """Write a mean over targets as a sum that is divided by the weights of these targets."""
        losses, targets, *weights = call.args
        ignored = int(call.attrs.ignore_index)
        dtype = str(losses.ty.dtype)

        def emit(value: Expr, name: str) -> Var:
            return self._call(relax.Var(name, var.ty), self.builder.normalize(value))

        counts = emit(not_equal(targets, relax.const(ignored, str(targets.ty.dtype))), "counts")
        counts = emit(astype(counts, dtype), "counts")
        if weights:
            known = emit(clip(targets, 0, int(weights[0].ty.shape[0]) - 1), "known")
            each = emit(take(weights[0], known, axis=0, mode="fast"), "weight")
            counts = emit(multiply(each, counts), "weight")
        divisor = emit(sum_op(counts), "divisor")
        options = {"reduction": "sum", "ignore_index": ignored}
        total = emit(nll_loss(losses, targets, *weights, **options), "total")
        return emit(divide(total, divisor), str(var.name))

    def _call(self, var: Var, call: ir.Call) -> Var:
        """Write a call, with the states of its results that follow from its sharding rule."""
        operands = [
            (expr, number) for arg in tensor_args(call) for expr, number, _ in leaves_of(arg)
        ]
        states = [self._states_of(expr)[number] for expr, number in operands]
        results = len(flat_types(call.ty))
        if all(state == _SAME for state in states):
            return self._emit(var, call, [_SAME] * results)
        rule = self._rule(var, call, states)
        terms = {i for i, state in enumerate(states) if state in (_SUM, _MEAN)}
        group = linear_group(rule, terms, states)
        if terms and group is None:
            totals = {
                i: self._total(operands[i][0], states[i])
                for i in terms
                if self._is_data(operands[i])
            }
            call = with_operands(call, totals)
            states = [_SAME if i in totals else s for i, s in enumerate(states)]
            terms -= totals.keys()
            if terms or all(state == _SAME for state in states):
                group = linear_group(rule, terms, states)
                if group is None:
                    raise refusal(var, call, "it is not linear in a sum over the samples")
        if group is not None:
            return self._linear(var, call, states, group, results)
        return self._rows(var, call, states, rule)

    def _rule(self, var: Var, call: ir.Call, states: Sequence[State]) -> Rule:
        functions = {gv: self.functions.of[name] for name, gv in self.functions.variables.items()}
        try:
            return rule_of(self._of_samples(call, states), ir.IRModule(functions))
        except (DistIRError, tvm.error.InternalError, TypeError, ValueError) as error:
            raise refusal(var, call, "its dims have no known relation to the samples") from error

    def _of_samples(self, call: ir.Call, states: Sequence[State]) -> ir.Call:
        """Return a call with several samples: rules leave out dims of extent 1."""
        return call if self.batch > 1 else self.builder.normalize(with_two_samples(call, states))

    def _linear(
        self, var: Var, call: ir.Call, states: Sequence[State], group: set[int], results: int
    ) -> Var:
        """Write a call that is linear in terms of sums: means become terms of sums beside these."""
        kinds = {states[i] for i in group} - {_SAME}
        if kinds <= {_MEAN}:
            return self._emit(var, call, [_MEAN if kinds else _SAME] * results)
        exprs = [e for arg in tensor_args(call) for e, _, _ in leaves_of(arg)]
        shares = {i: self._share(exprs[i]) for i in group if states[i] != _SUM}
        return self._emit(var, with_operands(call, shares), [_SUM] * results)

    def _share(self, value: Any) -> Any:
        """Emit the share of a micro-batch in what is the same for all, or their mean."""
        var = relax.Var(f"{getattr(value, 'name', 'constant')}_share", value.ty)
        return self._emit(var, self._divided(value), [_SUM])

    def _divided(self, value: Expr) -> Expr:
        return multiply(value, scalar(1.0 / self.micro_batches, str(value.ty.dtype)))

    def _rows(self, var: Var, call: ir.Call, states: Sequence[State], rule: Rule) -> Var:
        """Write a call whose operands have rows."""
        rows = {i: s for i, s in enumerate(states) if isinstance(s, int)}
        of_rows = (f for f in rule.factors if all(f.ins[i] == dim for i, dim in rows.items()))
        factor = next(of_rows, None)
        if factor is None:
            raise refusal(var, call, "it does not treat each sample by itself")
        if factor.kind not in ("map", "sum"):
            raise refusal(var, call, f"it reduces over the samples ({factor.kind})")
        term = _MEAN if factor.rescale else _SUM
        return self._emit(var, call, [term if d is None else d for d in factor.outs])

    def _is_data(self, operand: tuple[Var, int]) -> bool:
        return operand[0] in self._known and not isinstance(operand[0].ty, relax.TupleType)

    def _total(self, var: Var, state: State) -> Var:
        """Return the variable of the sum over the whole batch of a term that data determine."""
        if var not in self._batch_totals:
            name, bindings = f"{var.name}_whole", self._of_data
            result = var
            if state == _MEAN:
                share = self.builder.normalize(self._divided(var))
                result = relax.Var(name, var.ty)
                bindings = [*bindings, relax.VarBinding(result, share)]
            read = only_read(bindings, [result])
            bound = {b.var for b in read}
            used = (v for b in read for v in variables(b.value))
            args = tuple(dict.fromkeys(v for v in used if v not in bound))
            env = {v: relax.Var(str(v.name), v.ty) for v in args}
            inner = [relax.VarBinding(b.var, substitute(b.value, env)) for b in read]
            function = private_function(name, list(env.values()), inner, result)
            total = self._batch_totals[var] = relax.Var(name, var.ty)
            self.sums[total] = BatchSum(self.functions.add(name, function), args)
            self._states[total] = [_SAME]
            self._known.add(total)
        return self._batch_totals[var]

    def _states_of(self, expr: Expr) -> list[State]:
        """Return the state of each tensor of an expression; other variables are outputs."""
        if isinstance(expr, relax.Tuple):
            return [state for f in expr.fields for state in self._states_of(f)]
        if not isinstance(expr, ir.Var):
            return [_SAME] * len(flat_types(expr.ty))
        if expr not in self._states:
            self._states[expr] = [self._output_state(expr, ty) for ty in flat_types(expr.ty)]
        return self._states[expr]

    def _output_state(self, var: Var, ty: ir.Type) -> State:
        """Return the state of an output; a scalar is averaged over micro-batches."""
        shape = static_shape(ty)
        if tensor_type(ty) is None or shape is None or (shape and shape[0] != self.batch):
            raise ModelError(
                "DIST0354",
                f"{var.name} of {ty} has no leading dim of the {self.batch} samples of a "
                "micro-batch, so that its loss cannot be computed in micro-batches",
                location="train_step (loss)",
                remedy="Return outputs with the batch in front, or scalars, whose mean over "
                "micro-batches is taken.",
            )
        return 0 if shape else _SAME

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

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tvm.error
from tvm import ir, relax
from tvm.relax.op import astype, clip, divide, multiply, not_equal, take
from tvm.relax.op import sum as sum_op
from tvm.relax.op.nn import nll_loss

from tvm_distir.core.ir import FieldLeaves, flat_types, static_shape, tensor_type
from tvm_distir.core.ops import Rule, rule_of
from tvm_distir.core.rewriting import (
    leaves_of,
    op_name,
    rebuild,
    scalar,
    substitute,
    tensor_args,
    typed,
    variables,
)
from tvm_distir.support import DistIRError, ModelError, Steps, unrolled
from tvm_distir.transforms.training.autodiff.function_table import (
    NamedFunctions,
    only_read,
    private_function,
)
from tvm_distir.transforms.training.recompute.pairs import pure_bindings

_NLL = "relax.nn.nll_loss"
_SAME, _SUM, _MEAN = "same", "sum", "mean"

_State = int | str
"""What micro-batches have of a tensor: the rows of a dim of it, all of it, or a term."""


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
    args: tuple[Any, ...]


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

    builder: relax.BlockBuilder
    functions: NamedFunctions
    micro_batches: int
    batch: int
    data: Mapping[Any, bool]
    sums: dict[Any, BatchSum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._states: dict[Any, list[_State]] = {}
        self._whole: dict[Any, Any] = {}
        self._leaves = FieldLeaves()
        self._of_data: list[Any] = []
        self._known = set(self.data)
        for var, has_rows in self.data.items():
            self._states[var] = [0 if has_rows else _SAME]

    def run(self, bindings: Iterable[Any], result: Any, name: str) -> tuple[Any, float]:
        """Emit the loss; return its variable, and the factor of the sum over all micro-batches.

        Raises
        ------
        ModelError
            DIST0354 if micro-batches do not add up to the loss of the whole batch.
        """
        loss = unrolled(self._function(bindings, result, {}))
        (state,) = self._states_of(loss)
        if isinstance(state, int):
            raise _refusal(loss, loss, "it is not a scalar")
        return self.builder.emit(loss, name), 1.0 if state == _SUM else 1.0 / self.micro_batches

    def _function(self, bindings: Iterable[Any], result: Any, env: dict[Any, Any]) -> Steps[Any]:
        """Write the bindings of the loss, or of a function that it calls."""
        for binding in bindings:
            value = substitute(binding.value, env)
            env[binding.var] = yield from self._value(binding.var, value)
        return substitute(result, env)

    def _value(self, var: Any, value: Any) -> Steps[Any]:
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

    def _emit(self, var: Any, value: Any, states: Sequence[_State]) -> Any:
        new = self.builder.emit(value, str(var.name))
        self._states[new] = list(states)
        if self._known.issuperset(variables(value)):
            self._known.add(new)
            self._of_data.append(relax.VarBinding(new, self.builder.lookup_binding(new)))
        return new

    def _fields(self, value: relax.TupleGetItem) -> list[_State]:
        """Return the states of a field of a tuple."""
        leaves = self._leaves.of(value)
        return self._states_of(value.tuple_value)[leaves.start : leaves.stop]

    def _weighted_mean(self, var: Any, call: ir.Call) -> Any:
        """Write a mean over targets as a sum that is divided by the weights of these targets."""
        losses, targets, *weights = call.args
        ignored = int(call.attrs.ignore_index)
        dtype = str(losses.ty.dtype)

        def emit(value: Any, name: str) -> Any:
            return self._call(relax.Var(name, var.ty), self.builder.normalize(value))

        counts = emit(not_equal(targets, relax.const(ignored, str(targets.ty.dtype))), "counts")
        counts = emit(astype(counts, dtype), "counts")
        if weights:
            known = emit(clip(targets, 0, int(weights[0].ty.shape[0]) - 1), "known")
            each = emit(take(weights[0], known, axis=0, mode="fast"), "weight")
            counts = emit(multiply(each, counts), "weight")
        divisor = emit(sum_op(counts), "divisor")
        total = emit(
            nll_loss(losses, targets, *weights, reduction="sum", ignore_index=ignored), "total"
        )
        return emit(divide(total, divisor), str(var.name))

    def _call(self, var: Any, call: ir.Call) -> Any:
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
        group = _linear_group(rule, terms, states)
        if terms and group is None:
            whole = {
                i: self._total(operands[i][0], states[i])
                for i in terms
                if self._is_data(operands[i])
            }
            call, states = (
                _with_operands(call, whole),
                [_SAME if i in whole else s for i, s in enumerate(states)],
            )
            terms -= whole.keys()
            if terms or all(state == _SAME for state in states):
                group = _linear_group(rule, terms, states)
                if group is None:
                    raise _refusal(var, call, "it is not linear in a sum over the samples")
        if group is not None:
            return self._linear(var, call, states, group, results)
        return self._rows(var, call, states, rule)

    def _rule(self, var: Any, call: ir.Call, states: Sequence[_State]) -> Rule:
        try:
            return rule_of(self._with_rows(call, states), ir.IRModule(self._module()))
        except (DistIRError, tvm.error.TVMError) as error:
            raise _refusal(var, call, "its dims have no known relation to the samples") from error

    def _module(self) -> dict[Any, Any]:
        return {gv: self.functions.of[name] for name, gv in self.functions.variables.items()}

    def _with_rows(self, call: ir.Call, states: Sequence[_State]) -> Any:
        """Return a call with several samples: rules leave out dims of extent 1."""
        if self.batch > 1:
            return call
        env: dict[int, Any] = {}
        scale: tuple[int, tuple[int, ...]] | None = None
        operands = [(e, ty) for arg in tensor_args(call) for e, _, ty in leaves_of(arg)]
        for i, ((_, ty), state) in enumerate(zip(operands, states, strict=True)):
            if isinstance(state, int):
                shape = [int(n) for n in ty.shape]
                scale = state, tuple(shape)
                shape[state] *= 2
                env[i] = relax.Var("rows", relax.TensorType(shape, ty.dtype))
        call = _with_operands(call, env)
        if scale is not None:
            args = [
                _scaled(call, arg, *scale) if isinstance(arg, relax.ShapeExpr) else arg
                for arg in call.args
            ]
            call = rebuild(call, call.op, args)
        return self.builder.normalize(rebuild(call, call.op, list(call.args)))

    def _linear(
        self, var: Any, call: ir.Call, states: Sequence[_State], group: set[int], results: int
    ) -> Any:
        """Write a call that is linear in terms of sums: means become terms of sums beside these."""
        kinds = {states[i] for i in group} - {_SAME}
        if not kinds:
            return self._emit(var, call, [_SAME] * results)
        if kinds == {_MEAN}:
            return self._emit(var, call, [_MEAN] * results)
        exprs = [e for arg in tensor_args(call) for e, _, _ in leaves_of(arg)]
        shares = {i: self._share(exprs[i]) for i in group if states[i] != _SUM}
        return self._emit(var, _with_operands(call, shares), [_SUM] * results)

    def _share(self, value: Any) -> Any:
        """Emit the share of a micro-batch in what is the same for all, or their mean."""
        name = str(getattr(value, "name", "constant"))
        shared = multiply(value, scalar(1.0 / self.micro_batches, str(value.ty.dtype)))
        return self._emit(relax.Var(f"{name}_share", value.ty), shared, [_SUM])

    def _rows(self, var: Any, call: ir.Call, states: Sequence[_State], rule: Rule) -> Any:
        """Write a call whose operands have rows."""
        rows = {i: s for i, s in enumerate(states) if isinstance(s, int)}
        for factor in rule.factors:
            if all(factor.ins[i] == dim for i, dim in rows.items()):
                break
        else:
            raise _refusal(var, call, "it does not treat each sample by itself")
        if factor.kind not in ("map", "sum"):
            raise _refusal(var, call, f"it reduces over the samples ({factor.kind})")
        term = _MEAN if factor.rescale else _SUM
        return self._emit(var, call, [term if d is None else d for d in factor.outs])

    def _is_data(self, operand: tuple[Any, int]) -> bool:
        return operand[0] in self._known and not isinstance(operand[0].ty, relax.TupleType)

    def _total(self, var: Any, state: _State) -> Any:
        """Return the variable of the sum over the whole batch of a term that data determine."""
        if var not in self._whole:
            name, bindings = f"{var.name}_whole", self._of_data
            result = var
            if state == _MEAN:
                share = multiply(var, scalar(1.0 / self.micro_batches, str(var.ty.dtype)))
                result = relax.Var(name, var.ty)
                bindings = [*bindings, relax.VarBinding(result, self.builder.normalize(share))]
            read = only_read(bindings, [result])
            bound = {b.var for b in read}
            args = tuple(
                dict.fromkeys(v for b in read for v in variables(b.value) if v not in bound)
            )
            env = {v: relax.Var(str(v.name), v.ty) for v in args}
            inner = [relax.VarBinding(b.var, substitute(b.value, env)) for b in read]
            function = private_function(name, list(env.values()), inner, result)
            total = self._whole[var] = relax.Var(name, var.ty)
            self.sums[total] = BatchSum(self.functions.add(name, function), args)
            self._states[total] = [_SAME]
            self._known.add(total)
        return self._whole[var]

    def _states_of(self, expr: Any) -> list[_State]:
        """Return the state of each tensor of an expression; other variables are outputs."""
        if isinstance(expr, relax.Tuple):
            return [state for f in expr.fields for state in self._states_of(f)]
        if not isinstance(expr, ir.Var):
            return [_SAME] * len(flat_types(expr.ty))
        if expr not in self._states:
            self._states[expr] = [self._output_state(expr, ty) for ty in flat_types(expr.ty)]
        return self._states[expr]

    def _output_state(self, var: Any, ty: Any) -> _State:
        """Return the state of an output; a scalar is averaged over micro-batches."""
        shape = static_shape(ty)
        if tensor_type(ty) is None or shape is None or (shape and shape[0] != self.batch):
            raise ModelError(
                "DIST0354",
                f"{var.name} of {ty} has no leading dim of the {self.batch} samples of a "
                "micro-batch, so that its loss cannot be computed in micro-batches",
                place="train_step (loss)",
                remedy="Return outputs with the batch in front, or scalars, whose mean over "
                "micro-batches is taken.",
            )
        return 0 if shape else _SAME


def _linear_group(rule: Rule, terms: set[int], states: Sequence[_State]) -> set[int] | None:
    """Return the operands in which a call is linear, all terms among them; None without."""
    if any(isinstance(state, int) for state in states):
        return None
    return next(
        (set(group) for group in rule.linear if terms <= set(group)), None if terms else set()
    )


def _with_operands(call: ir.Call, operands: Mapping[int, Any]) -> ir.Call:
    """Return a call with some of its tensors, by their numbers, replaced by others."""
    if not operands:
        return call
    number = 0

    def replaced(arg: Any) -> Any:
        nonlocal number
        if type(arg) is relax.Tuple:
            fields = [replaced(f) for f in arg.fields]
            return typed(relax.Tuple(fields), relax.TupleType([f.ty for f in fields]))
        number += len(flat_types(arg.ty))
        return operands.get(number - 1, arg) if type(arg.ty) is not relax.TupleType else arg

    tensors = tensor_args(call)
    args = [replaced(arg) if any(arg.same_as(t) for t in tensors) else arg for arg in call.args]
    return rebuild(call, call.op, args, call.ty)


def _scaled(call: ir.Call, shape: relax.ShapeExpr, dim: int, operand: Sequence[int]) -> Any:
    """Return the shape that a call gives its result, of an operand with two samples."""
    extents = [int(n) for n in shape.values]
    place = len(extents) - len(operand) + dim
    if str(call.op.name) == "relax.reshape":
        before = math.prod(operand[:dim])
        fits = [k for k in range(len(extents)) if math.prod(extents[:k]) == before]
        place = fits[0] if fits else -1
    if place >= 0:
        extents[place] *= 2
    return relax.ShapeExpr(extents)


def _refusal(var: Any, value: Any, why: str) -> ModelError:
    return ModelError(
        "DIST0354",
        f"the loss cannot be computed in micro-batches: {op_name(value)} of {var.name}: {why}",
        place="train_step (loss)",
        remedy="Write the loss as a sum or mean over the samples, divided by sums of targets or "
        "weights alone, or train without micro-batches.",
    )

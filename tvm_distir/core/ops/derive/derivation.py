# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Derives rules of ops without a hand-written rule from the PrimFunc the op legalizes to.

A lowered program calls the *op* on blocks of its operands, not a block of that PrimFunc. A factor
of the PrimFunc holds for the op only when the op, legalized for a block, gives the same kernel on
smaller extents: the block's shapes, the same numbers in its values, factors smaller in proportion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import ir, relax, tirx
from tvm.ir import Expr

from tvm_distir.core.ir.types import flat_types, static_shape, tensor_type
from tvm_distir.core.ops.dims import Shape, plain, same
from tvm_distir.core.ops.draft import CallShape, Draft
from tvm_distir.core.ops.factor import Rule
from tvm_distir.support import PropagationError

from .compute_blocks import NotUnderstood, blocks_of, children, count_flops, kind_of
from .primfunc import Accept, analyse


def _refuse(shape: CallShape, why: str) -> PropagationError:
    problem = f"no sharding rule, and none can be derived: {why}"
    remedy = "Register a rule with register_sharding_rule."
    return PropagationError("DIST0401", problem, location=shape.op, remedy=remedy)


def _alone(call: ir.Call, shapes: Sequence[Shape]) -> tuple[list[relax.Var], ir.Call]:
    """Build the call on fresh parameters of the given shapes, each for a tensor operand."""
    params: list[relax.Var] = []

    def fresh(ty: ir.Type) -> Expr:
        if isinstance(ty, relax.TupleType):
            return relax.Tuple([fresh(field) for field in ty.fields])
        tensor: ir.Type = tensor_type(ty)
        local = relax.TensorType(list(shapes[len(params)]), tensor.dtype)
        params.append(relax.Var(f"operand{len(params)}", local))
        return params[-1]

    def holds_tensors(ty: ir.Type) -> bool:
        if isinstance(ty, relax.TupleType):
            return len(ty.fields) > 0 and all(holds_tensors(f) for f in ty.fields)
        return tensor_type(ty) is not None

    args = [fresh(a.ty) if holds_tensors(a.ty) else a for a in call.args]
    return params, ir.Call(call.op, args, call.attrs, call.ty_args)


def _legalized(call: ir.Call, shapes: Sequence[Shape]) -> tuple[list[relax.Var], Any]:
    """Legalize the call alone on the given shapes; return its parameters and its module."""
    params, alone = _alone(call, shapes)
    value = relax.BlockBuilder().normalize(alone)
    result = relax.Var("result", value.ty)
    block = relax.BindingBlock([relax.VarBinding(result, value)])
    func = relax.Function(params, relax.SeqExpr([block], result), value.ty)
    mod = ir.IRModule({"main": func.with_attr("global_symbol", "main")})
    return params, relax.transform.LegalizeOps()(mod)


def _kernels(mod: ir.IRModule) -> list[tirx.PrimFunc]:
    return [f for _, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]


def _numbers(e: Expr) -> Iterator[float]:
    """Return the numeric constants in a value, apart from those in indices."""
    if kind_of(e) in ("IntImm", "FloatImm"):
        yield float(plain(e))
    elif kind_of(e) != "TensorLoad":
        for child in children(e):
            yield from _numbers(child)


def _constants(func: tirx.PrimFunc) -> list[float]:
    blocks = blocks_of(func.body)
    return [n for b in blocks for store in b.stores for e in store.read() for n in _numbers(e)]


class _Follower:
    """Accepts the factors that the op itself follows when it is called on blocks."""

    def __init__(self, call: ir.Call, shape: CallShape, func: tirx.PrimFunc) -> None:
        self._call = call
        self._shape = shape
        self._func = func

    def _local(self, ins: dict[int, int], outs: dict[int, int], count: int) -> CallShape:
        def part(shapes: Sequence[Shape], dims: dict[int, int]) -> tuple[Shape, ...]:
            return tuple(
                tuple(
                    (n // count if isinstance(n, int) else tirx.floordiv(n, count))
                    if dims.get(i) == d and not (isinstance(n, int) and n == 1)
                    else n
                    for d, n in enumerate(s)
                )
                for i, s in enumerate(shapes)
            )

        return dataclasses.replace(
            self._shape, ins=part(self._shape.ins, ins), outs=part(self._shape.outs, outs)
        )

    def __call__(self, ins: dict[int, int], outs: dict[int, int], size: int | Expr) -> str | None:
        """Return why the op does not follow the factor, or None when it does."""
        count = 2
        if isinstance(size, int):
            count = next(k for k in range(2, size + 1) if size % k == 0)
        local = self._local(ins, outs, count)
        try:
            _, mod = _legalized(self._call, local.ins)
        except Exception:  # the checks of the op refuse the block
            return "the op refuses a block of its operands"
        got = [static_shape(t) for t in flat_types(mod["main"].ret_ty)]
        for shape, expected in zip(got, local.outs):
            if shape is None or len(shape) != len(expected) or not all(map(same, shape, expected)):
                return "the op's attributes contain its extent"
        kernels = _kernels(mod)
        try:
            equal = len(kernels) == 1 and _constants(kernels[0]) == _constants(self._func)
        except NotUnderstood:
            equal = False
        if not equal:
            return "numbers in the op's kernel depend on its extent"
        if isinstance(size, int):
            sizes = [
                f.size
                for f in analyse(kernels[0], local).rule().factors
                if any(f.ins[i] == d for i, d in ins.items())
                or any(f.outs[i] == d for i, d in outs.items())
            ]
            if sizes != ([size // count] if size > count else []):
                return "the op on a block has other proportions than on the full tensor"
        return None


def derive_call(call: ir.Call, shape: CallShape) -> Rule:
    """Derive the rule of an op call from the PrimFunc it legalizes to.

    Raises
    ------
    PropagationError
        DIST0401 when the call cannot be legalized alone.
    """
    try:
        params, mod = _legalized(call, shape.ins)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _refuse(shape, f"it cannot be legalized ({lines[-1][:120]})") from error
    kernels = _kernels(mod)
    if not kernels:
        raise _refuse(shape, "it does not legalize to TIR")
    calls = [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, ir.Call)
    ]
    draft = Draft(shape, "derived")
    draft.work(sum(count_flops(f.body) for f in kernels))
    if len(kernels) > 1 or len(calls) > 1:
        draft.default_why = "the op legalizes to several kernels"
        return draft.rule()
    operands = list(calls[0].args[1].fields)
    if len(operands) != len(params) or not all(a.same_as(b) for a, b in zip(operands, params)):
        draft.default_why = "its kernel has other operands than the op"
        return draft.rule()
    accept: Accept = _Follower(call, shape, kernels[0])
    return analyse(kernels[0], shape, accept).rule()

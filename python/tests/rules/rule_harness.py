# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Proves sharding rules by execution: blocks through the op, combined, against the whole result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax

from tvm_distir.ir.types import flat_types, static_shape
from tvm_distir.rules import Factor, Rule, rule_of

#: Unoptimised: compiling is what takes the time here.
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})

#: Ops whose first shape argument is the shape of the result.
TARGET_SHAPE = (
    "relax.reshape",
    "relax.broadcast_to",
    "relax.full",
    "relax.zeros",
    "relax.ones",
    "relax.collapse_sum_to",
)


def var(*shape: int, dtype: str = "float32") -> relax.Var:
    return relax.Var("x", relax.TensorType(list(shape), dtype))


def _operands(arg: Any) -> list[Any]:
    if isinstance(arg, relax.Tuple):
        return [x for f in arg.fields for x in _operands(f)]
    return [arg] if isinstance(arg, ir.Var) else []


@dataclass(frozen=True)
class Case:
    """A call on distinct variables, and how its operands are drawn."""

    name: str
    call: ir.Call
    draws: dict[int, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = field(
        default_factory=dict
    )
    tolerance: float = 0.0
    localize: Callable[[ir.Call, Factor, int], Any] | None = None
    mod: Any = None

    @property
    def operands(self) -> list[relax.Var]:
        return [v for a in self.call.args for v in _operands(a)]

    def rule(self) -> Rule:
        return rule_of(self.call, self.mod)

    def inputs(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        drawn = []
        for i, v in enumerate(self.operands):
            shape, dtype = static_shape(v.ty), str(v.ty.dtype)
            make = self.draws.get(i, lambda g, s: g.integers(-2, 3, s))
            drawn.append(np.asarray(make(rng, shape)).astype(dtype))
        return drawn


def index_below(n: int) -> Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]:
    return lambda rng, shape: rng.integers(0, n, shape)


def nonzero(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([-2.0, -1.0, 1.0, 2.0, 4.0], shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([0.25, 1.0, 4.0], shape)


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.permutation(math.prod(shape)).reshape(shape)


def _local_attrs(call: ir.Call, factor: Factor, count: int) -> Any:
    """Attributes that count what is cut: groups of a convolution or of group_norm."""
    attrs = call.attrs
    name = str(call.op.name)
    fields = (
        {f.name: getattr(attrs, f.name) for f in type(attrs).__tvm_ffi_type_info__.fields}
        if attrs is not None
        else {}
    )
    groups = int(fields.get("groups", 1))
    if "conv" in name and groups > 1 and factor.ins[0] is not None and factor.ins[1] is not None:
        fields["groups"] = groups // count
    elif name == "relax.nn.group_norm" and factor.ins[1] is not None:
        fields["num_groups"] = int(fields["num_groups"]) // count
    elif name == "relax.squeeze":
        fields["axis"] = [d for d, n in enumerate(static_shape(call.args[0].ty)) if n == 1]
    else:
        return attrs
    key = str(type(attrs).__tvm_ffi_type_info__.type_key)
    return ir.make_node(key, **fields)


def local_call(case: Case, factor: Factor, count: int) -> tuple[list[relax.Var], Any]:
    """The call on one block of its operands."""
    params: list[relax.Var] = []

    def rebuild(arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([rebuild(f) for f in arg.fields])
        if not isinstance(arg, ir.Var):
            return arg
        shape, dim = list(static_shape(arg.ty)), factor.ins[len(params)]
        if dim is not None:
            shape[dim] //= count
        params.append(var(*shape, dtype=str(arg.ty.dtype)))
        return params[-1]

    args = [rebuild(a) for a in case.call.args]
    if case.localize is not None:
        return params, case.localize(ir.Call(case.call.op, args, case.call.attrs), factor, count)
    if str(case.call.op.name) in TARGET_SHAPE:
        whole = flat_types(relax.BlockBuilder().normalize(case.call).ty)[0]
        target = list(static_shape(whole))
        if factor.outs[0] is not None:
            target[factor.outs[0]] //= count
        args = [relax.ShapeExpr(target) if isinstance(a, relax.ShapeExpr) else a for a in args]
    attrs = _local_attrs(case.call, factor, count)
    return params, ir.Call(case.call.op, args, attrs, case.call.ty_args)


def _function(params: Sequence[relax.Var], call: Any, name: str) -> relax.Function:
    fresh = relax.BlockBuilder().normalize(call)
    result = relax.Var("r", fresh.ty)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, fresh)])], result)
    return relax.Function(list(params), body, fresh.ty).with_attr("global_symbol", name)


class Machine:
    """Functions compiled together and called by key."""

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}
        self._keys: dict[Any, str] = {}
        self._kernels = relax.BlockBuilder()
        self._vm: Any = None

    def add(self, key: Any, params: Sequence[relax.Var], call: Any, mod: Any = None) -> None:
        name = f"f{len(self._functions)}"
        self._keys[key] = name
        if mod is not None:  # a call_tir: its PrimFunc moves under a name of its own
            kernel = next(f for g, f in mod.functions.items() if g.name_hint == "kernel")
            private = kernel.without_attr("global_symbol")
            target = self._kernels.add_func(private, f"kernel_{name}")
            call = ir.Call(call.op, [target, *call.args[1:]], call.attrs, call.ty_args)
        self._functions[name] = _function(params, call, name)

    def compile(self) -> None:
        mod = self._kernels.get()
        for name, function in self._functions.items():
            mod[name] = function
        self._vm = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())

    def run(self, key: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        out = self._vm[self._keys[key]](
            *(tvm.runtime.tensor(np.ascontiguousarray(x)) for x in inputs)
        )
        return [x.numpy() for x in out] if not hasattr(out, "numpy") else [out.numpy()]


_REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def _block(x: np.ndarray, dim: int | None, rank: int, count: int) -> np.ndarray:
    return x if dim is None else np.split(x, count, axis=dim)[rank]


def _counts(factor: Factor) -> list[int]:
    return [n for n in (2, 3) if isinstance(factor.size, int) and factor.size % n == 0]


def _close(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if tolerance == 0:
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))


def _terms(case: Case, factor: Factor, blocks: list[np.ndarray], rank: int, count: int) -> Any:
    """Inputs of one rank and the mask its result is multiplied with (table rows of a take)."""
    if str(case.call.op.name) == "relax.take" and factor.reduces:
        low = rank * blocks[0].shape[factor.ins[0]]
        local = blocks[1] - low
        held = (local >= 0) & (local < blocks[0].shape[factor.ins[0]])
        axis = factor.ins[0]
        shape = (1,) * axis + held.shape + (1,) * (blocks[0].ndim - 1 - axis)
        return [blocks[0], np.where(held, local, 0).astype(blocks[1].dtype)], held.reshape(shape)
    return blocks, None


def _prove_factor(
    machine: Machine, case: Case, number: int, factor: Factor, count: int, whole: list[np.ndarray]
) -> str | None:
    inputs = case.inputs(0)
    ranks = []
    for rank in range(count):
        blocks = [_block(x, d, rank, count) for x, d in zip(inputs, factor.ins)]
        blocks, mask = _terms(case, factor, blocks, rank, count)
        results = machine.run((case.name, number, count), blocks)
        if mask is not None:
            results = [(r * mask).astype(r.dtype) for r in results]
        if factor.rescale:
            results = [(r / count).astype(r.dtype) for r in results]
        ranks.append(results)
    for j, expected in enumerate(whole):
        parts = [r[j] for r in ranks]
        if factor.reduces:
            got = _REDUCE[factor.kind].reduce(parts).astype(expected.dtype)
        elif factor.outs[j] is None:
            if not all(_close(p, parts[0], 0) for p in parts):
                return f"result {j} differs between devices"
            got = parts[0]
        else:
            got = np.concatenate(parts, axis=factor.outs[j])
        if not _close(got, expected, case.tolerance):
            return f"result {j} differs"
    return None


def _prove_linear(machine: Machine, case: Case, group: tuple[int, ...]) -> str | None:
    first, other = case.inputs(0), case.inputs(1)
    terms = [first, [b if i in group else a for i, (a, b) in enumerate(zip(first, other))]]
    total = [a + b if i in group else a for i, (a, b) in enumerate(zip(*terms))]
    parts = [machine.run((case.name, "whole"), t) for t in terms]
    whole = machine.run((case.name, "whole"), total)
    for a, b, w in zip(*parts, whole):
        if not _close((a + b).astype(w.dtype), w, case.tolerance):
            return "f(a) + f(b) differs from f(a + b)"
    return None


def prove(cases: Sequence[Case], rules: Sequence[Rule] | None = None) -> dict[str, list[str]]:
    """Run every factor and linear group of every case; return the failures by case."""
    rules = [c.rule() for c in cases] if rules is None else rules
    failures: dict[str, list[str]] = {c.name: [] for c in cases}
    machine = Machine()
    tasks = []
    for case, rule in zip(cases, rules):
        machine.add((case.name, "whole"), case.operands, case.call, case.mod)
        for number, factor in enumerate(rule.factors):
            for count in _counts(factor) if factor.kind != "stat" else ():
                try:
                    params, call = local_call(case, factor, count)
                    mod = None
                    if isinstance(call, tuple):
                        call, mod = call
                    machine.add((case.name, number, count), params, call, mod)
                    tasks.append((case, rule, number, factor, count))
                except Exception as error:
                    failures[case.name].append(f"factor {number}: {str(error).splitlines()[-1]}")
    machine.compile()
    for case, rule, number, factor, count in tasks:
        whole = machine.run((case.name, "whole"), case.inputs(0))
        try:
            found = _prove_factor(machine, case, number, factor, count, whole)
        except Exception as error:
            found = str(error).splitlines()[-1]
        if found:
            failures[case.name].append(f"factor {number} over {count}: {found}")
    for case, rule in zip(cases, rules):
        for group in rule.linear:
            if (found := _prove_linear(machine, case, group)) is not None:
                failures[case.name].append(f"linear {group}: {found}")
    return failures

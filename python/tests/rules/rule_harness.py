# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Proves sharding rules by execution: blocks through the op, combined, against the whole result.

A dim that does not divide is padded at its end, as it would be on the devices: with the neutral
element where it is reduced, and elsewhere with NaN, which no result may let through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

from tvm_distir.ir.types import flat_types, static_shape
from tvm_distir.rules import Factor, Rule, rule_of

#: Unoptimised: compiling is what takes the time here.
TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})

#: Kinds whose devices exchange data inside the op: only the lowered call shows them.
INSIDE = ("stat", "halo")

#: Ops that look rows up, and the operand whose rows lie on several devices: the lowered call
#: leaves out what the others hold.
SELECTING = {
    "relax.grad.nll_loss_backward": 1,
    "relax.grad.take_backward": 1,
    "relax.nn.nll_loss": 0,
}

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
    """A call on distinct variables, and how its operands are drawn.

    Attributes
    ----------
    name : str
    call : Call
    draws : dict of int to callable
        Of operands that do not hold numbers from -2 to 2: (generator, shape) to their values.
    tolerance : float
        0: results must be bit-equal.
    localize : callable, optional
        The call on one block, where attributes and shapes do not say it.
    mod : IRModule, optional
        Holds the kernel of a ``call_tir``.
    fills : dict of int to number
        What the padding of an operand holds, when NaN (or 0) would not be harmless.
    numpy : callable, optional
        What the op computes, where TVM has no kernel for it.
    """

    name: str
    call: ir.Call
    draws: dict[int, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = field(
        default_factory=dict
    )
    tolerance: float = 0.0
    localize: Callable[[ir.Call, Factor, int], Any] | None = None
    mod: Any = None
    fills: dict[int, float] = field(default_factory=dict)
    numpy: Callable[..., np.ndarray] | None = None

    @property
    def op(self) -> str:
        return str(self.call.op.name)

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


def unit(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([-0.75, -0.5, 0.0, 0.25, 0.5], shape)


def above_one(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([1.0, 1.5, 2.0, 4.0], shape)


def halves(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-4, 5, shape) / 2


def specials(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([np.nan, np.inf, -np.inf, 1.0], shape)


def bits(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 2, shape)


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.permutation(math.prod(shape)).reshape(shape)


def only_lowered(case: Case, factor: Factor) -> bool:
    """Whether the op alone, on blocks of its operands, does not give blocks of its results."""
    rows = SELECTING.get(case.op)
    others = [d for i, d in enumerate(factor.ins) if i != rows]
    selected = rows is not None and factor.ins[rows] is not None
    inside = factor.kind in INSIDE or _is_of_windows(case, factor)
    return inside or (selected and all(d is None for d in others))


def _is_of_windows(case: Case, factor: Factor) -> bool:
    """Whether the factor sums over the places of a convolution's windows."""
    if factor.kind != "sum" or not case.op.startswith("relax.nn.conv"):
        return False
    return factor.ins[0] is not None and str(case.call.attrs.data_layout)[factor.ins[0]] not in "NC"


def share(extent: int, count: int) -> int:
    """Extent of one device's part, padding included."""
    return -(-extent // count)


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
    elif name == "relax.squeeze" and fields["axis"] is None:
        fields["axis"] = [d for d, n in enumerate(static_shape(call.args[0].ty)) if n == 1]
    elif name in ("relax.tile", "relax.repeat") and factor.ins[0] is None:
        whole = relax.BlockBuilder().normalize(call).ty
        if name == "relax.repeat":
            fields["repeats"] = int(fields["repeats"]) // count
        else:
            given, dim = [int(n) for n in fields["repeats"]], factor.outs[0]
            repeats = [1] * (int(whole.ndim) - len(given)) + given
            repeats[dim] = share(repeats[dim], count)
            fields["repeats"] = repeats
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
            shape[dim] = share(shape[dim], count)
        params.append(var(*shape, dtype=str(arg.ty.dtype)))
        return params[-1]

    args = [rebuild(a) for a in case.call.args]
    if case.localize is not None:
        return params, case.localize(ir.Call(case.call.op, args, case.call.attrs), factor, count)
    if str(case.call.op.name) in TARGET_SHAPE:
        whole = flat_types(relax.BlockBuilder().normalize(case.call).ty)[0]
        target = list(static_shape(whole))
        if factor.outs[0] is not None:
            target[factor.outs[0]] = share(target[factor.outs[0]], count)
        args = [relax.ShapeExpr(target) if isinstance(a, relax.ShapeExpr) else a for a in args]
    attrs = _local_attrs(case.call, factor, count)
    return params, ir.Call(case.call.op, args, attrs, case.call.ty_args)


def _function(params: Sequence[relax.Var], call: Any) -> relax.Function:
    fresh = relax.BlockBuilder().normalize(call)
    result = relax.Var("r", fresh.ty)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, fresh)])], result)
    return relax.Function(list(params), body, fresh.ty)


class Machine:
    """Functions compiled together and called by key."""

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}
        self._keys: dict[Any, str] = {}
        self._alike: dict[int, list[tuple[Any, str]]] = {}
        self._numpy: dict[Any, Callable[..., np.ndarray]] = {}
        self._kernels = relax.BlockBuilder()
        self._vm: Any = None

    def add(self, key: Any, params: Sequence[relax.Var], call: Any, mod: Any = None) -> None:
        name = f"f{len(self._functions)}"
        if mod is None:  # calls of the same shapes share a function
            plain = _function(params, call)
            alike = self._alike.setdefault(int(tvm_ffi.structural_hash(plain)), [])
            known = next((n for f, n in alike if tvm_ffi.structural_equal(f, plain)), None)
            self._keys[key] = known or name
            if known is None:
                alike.append((plain, name))
                self._functions[name] = plain.with_attr("global_symbol", name)
            return
        self._keys[key] = name
        # A call_tir: its PrimFunc moves under a name of its own.
        kernel = next(f for g, f in mod.functions.items() if g.name_hint == "kernel")
        private = kernel.without_attr("global_symbol")
        target = self._kernels.add_func(private, f"kernel_{name}")
        call = ir.Call(call.op, [target, *call.args[1:]], call.attrs, call.ty_args)
        self._functions[name] = _function(params, call).with_attr("global_symbol", name)

    def add_numpy(self, key: Any, function: Callable[..., np.ndarray]) -> None:
        """For an op without a kernel in TVM: what it computes, in NumPy."""
        self._numpy[key] = function

    def compile(self) -> None:
        if not self._functions:
            return
        mod = self._kernels.get()
        for name, function in self._functions.items():
            mod[name] = function
        self._vm = relax.VirtualMachine(tvm.compile(mod, TARGET), tvm.cpu())

    def run(self, key: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if key in self._numpy:
            return [self._numpy[key](*inputs)]
        out = self._vm[self._keys[key]](
            *(tvm.runtime.tensor(np.array(x, order="C")) for x in inputs)
        )
        return [x.numpy() for x in out] if not hasattr(out, "numpy") else [out.numpy()]


_REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def neutral(kind: str, dtype: np.dtype) -> Any:
    """What padding holds where it is reduced."""
    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if dtype.kind == "f":
        return np.inf if kind == "min" else -np.inf
    if dtype.kind == "b":
        return kind == "min"
    return np.iinfo(dtype).max if kind == "min" else np.iinfo(dtype).min


def _fill(case: Case, number: int, factor: Factor, dtype: np.dtype) -> Any:
    if factor.reduces:
        return neutral(factor.kind, dtype)
    return case.fills.get(number, np.nan if dtype.kind == "f" else 0)


def _parts(x: np.ndarray, dim: int | None, count: int, fill: Any) -> list[np.ndarray]:
    """Blocks of an operand, one per device."""
    if dim is None:
        return [x] * count
    missing = share(x.shape[dim], count) * count - x.shape[dim]
    if missing:
        widths = [(0, missing if d == dim else 0) for d in range(x.ndim)]
        x = np.pad(x, widths, constant_values=fill)
    return np.split(x, count, axis=dim)


def counts_of(factor: Factor) -> list[int]:
    """Over how many devices a factor is tried: 2 and 3, evenly or with padding."""
    if not isinstance(factor.size, int):
        return []
    return [n for n in (2, 3) if factor.size % n == 0 or (factor.uneven and factor.size > n)]


def _close(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if tolerance == 0:
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


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
    parts = [
        _parts(x, d, count, _fill(case, i, factor, x.dtype))
        for i, (x, d) in enumerate(zip(inputs, factor.ins))
    ]
    ranks = []
    for rank in range(count):
        blocks = [p[rank] for p in parts]
        blocks, mask = _terms(case, factor, blocks, rank, count)
        results = machine.run((case.name, number, count), blocks)
        if mask is not None:
            results = [(r * mask).astype(r.dtype) for r in results]
        if factor.rescale:
            cut, dim = next((p, d) for p, d in zip(parts, factor.ins) if d is not None)
            weight = cut[rank].shape[dim] / factor.size
            results = [(r * weight).astype(r.dtype) for r in results]
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
            if factor.uneven:
                got = np.take(got, range(expected.shape[factor.outs[j]]), axis=factor.outs[j])
        if not _close(got, expected, case.tolerance):
            return f"result {j} differs"
    return None


def _prove_linear(machine: Machine, case: Case, group: tuple[int, ...]) -> str | None:
    first, other = case.inputs(0), case.inputs(1)
    terms = [first, [b if i in group else a for i, (a, b) in enumerate(zip(first, other))]]
    with np.errstate(all="ignore"):  # infinities of both signs may meet
        total = [a + b if i in group else a for i, (a, b) in enumerate(zip(*terms))]
    parts = [machine.run((case.name, "whole"), t) for t in terms]
    whole = machine.run((case.name, "whole"), total)
    for a, b, w in zip(*parts, whole):
        with np.errstate(all="ignore"):
            joined = (a + b).astype(w.dtype)
        if not _close(joined, w, case.tolerance):
            return "f(a) + f(b) differs from f(a + b)"
    return None


@dataclass
class Proof:
    """What was executed, and what differed.

    Attributes
    ----------
    failures : dict of str to list of str
        By case; empty where all held.
    placements, linear : int
        Factors executed over a number of devices each, and linear groups.
    uneven : int
        Those of the placements that needed padding.
    ops : list of str
        Of which ops, sorted.
    """

    failures: dict[str, list[str]]
    placements: int = 0
    linear: int = 0
    uneven: int = 0
    ops: list[str] = field(default_factory=list)

    def add(self, other: Proof) -> None:
        """Count another proof in."""
        self.failures.update(other.failures)
        self.placements += other.placements
        self.linear += other.linear
        self.uneven += other.uneven
        self.ops = sorted({*self.ops, *other.ops})

    @property
    def wrong(self) -> dict[str, list[str]]:
        return {name: found for name, found in self.failures.items() if found}

    def summary(self) -> str:
        """Counts in one line."""
        return (
            f"{len(self.ops)} ops, {len(self.failures)} cases, {self.placements} placements "
            f"({self.uneven} padded), {self.linear} linear groups, "
            f"{sum(map(len, self.failures.values()))} wrong"
        )


#: What the tests of this session executed.
PROVED = Proof({})


def run_cases(cases: Sequence[Case], rules: Sequence[Rule] | None = None) -> Proof:
    """Run every factor and linear group of every case."""
    rules = [c.rule() for c in cases] if rules is None else rules
    proof = Proof({c.name: [] for c in cases}, ops=sorted({c.op for c in cases}))
    failures = proof.failures
    machine = Machine()
    tasks = []
    for case, rule in zip(cases, rules):
        if case.numpy is not None:
            machine.add_numpy((case.name, "whole"), case.numpy)
        else:
            machine.add((case.name, "whole"), case.operands, case.call, case.mod)
        for number, factor in enumerate(rule.factors):
            for count in counts_of(factor) if not only_lowered(case, factor) else ():
                if case.numpy is not None:
                    machine.add_numpy((case.name, number, count), case.numpy)
                    tasks.append((case, number, factor, count))
                    continue
                try:
                    params, call = local_call(case, factor, count)
                    mod = None
                    if isinstance(call, tuple):
                        call, mod = call
                    machine.add((case.name, number, count), params, call, mod)
                    tasks.append((case, number, factor, count))
                except Exception as error:
                    failures[case.name].append(f"factor {number}: {str(error).splitlines()[-1]}")
    machine.compile()
    for case, number, factor, count in tasks:
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
    proof.placements = len(tasks)
    proof.uneven = sum(factor.size % count != 0 for _, _, factor, count in tasks)
    proof.linear = sum(len(rule.linear) for rule in rules)
    return proof


def prove(cases: Sequence[Case], rules: Sequence[Rule] | None = None) -> dict[str, list[str]]:
    """Failures by case of :func:`run_cases`."""
    return run_cases(cases, rules).failures


def case(
    call: ir.Call,
    draws: dict[int, Any] | None = None,
    tolerance: float = 0.0,
    fills: dict[int, float] | None = None,
    numpy: Callable[..., np.ndarray] | None = None,
) -> Case:
    """A case named after its op and the shapes of its operands."""
    shapes = " ".join(
        "x".join(map(str, static_shape(v.ty))) or "()" for a in call.args for v in _operands(a)
    )
    name = f"{str(call.op.name).removeprefix('relax.')} {shapes or '-'}"
    return Case(name, call, draws or {}, tolerance, fills=fills or {}, numpy=numpy)

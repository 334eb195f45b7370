# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Split a level-5 function into steps: segments, collectives, transfers, private calls.

A *segment* is a maximal run of bindings that TVM can compile alone; everything the engine must
do itself is between two segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, relax, tirx

from tvm_distir.core.collectives import Collective, Transfer, decode_collective, decode_transfer
from tvm_distir.core.ir.operators import dist_op_name, is_done
from tvm_distir.core.rewriting import bindings_in
from tvm_distir.execution.runtime.program.compiled import KERNEL
from tvm_distir.support import EngineError, GenericConst, Steps, unrolled


@dataclass(frozen=True, eq=False)
class Segment:
    """Bindings to compile: ``module[KERNEL]`` takes ``inputs`` and returns ``outputs``.

    Each is a separate key: names need not be unique.
    """

    module: ir.IRModule
    inputs: tuple[relax.Var, ...]
    outputs: tuple[relax.Var, ...]
    location: str


@dataclass(frozen=True)
class CollectiveStep:
    """``target = collective(operand)``."""

    target: relax.Var
    collective: Collective
    operand: relax.Expr | None
    location: str


@dataclass(frozen=True)
class TransferStep:
    """A ``send`` (with operand) or a ``recv``."""

    target: relax.Var
    transfer: Transfer
    operand: relax.Expr | None
    dtype: str
    location: str


@dataclass(frozen=True)
class CallStep:
    """A call of a private function."""

    target: relax.Var
    callee: str
    args: tuple[relax.Expr, ...]
    location: str


@dataclass(frozen=True)
class AliasStep:
    """``target = value`` where value is a variable, constant, tuple or tuple item."""

    target: relax.Var
    value: relax.Expr


@dataclass(frozen=True)
class IfStep:
    """``target = then() if condition else otherwise()``; both read the variables around them."""

    target: relax.Var
    condition: relax.Expr
    then: FunctionSteps
    otherwise: FunctionSteps
    free: tuple[relax.Var, ...]
    location: str


Step = Segment | CollectiveStep | TransferStep | CallStep | AliasStep | IfStep


@dataclass(frozen=True)
class FunctionSteps:
    """A function as steps.

    Attributes
    ----------
    name : str
    params : tuple of Var
    steps : tuple of Step
    result : Expr
        Variable, constant or (nested) tuple.
    last_use : tuple of tuple of Var
        The variables that nobody reads after each step.
    """

    name: str
    params: tuple[relax.Var, ...]
    steps: tuple[Step, ...]
    result: relax.Expr
    last_use: tuple[tuple[relax.Var, ...], ...]


def _cannot(location: str, problem: str, remedy: str) -> EngineError:
    return EngineError("DIST0605", problem, location=location, remedy=remedy)


def leaf_vars(expr: relax.Expr) -> list[relax.Var]:
    """Return the variables in a (nested tuple of) variables, items and constants, in order."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Tuple):
        return [v for field in expr.fields for v in leaf_vars(field)]
    return leaf_vars(expr.tuple_value) if isinstance(expr, relax.TupleGetItem) else []


def _is_alias(value: relax.Expr) -> bool:
    return isinstance(
        value, relax.Var | relax.Tuple | relax.TupleGetItem | GenericConst
    ) and not isinstance(value, ir.GlobalVar)


def _location(fn_name: str, var: relax.Var, value: relax.Expr) -> str:
    op = getattr(value, "op", None)
    name = str(getattr(op, "name", getattr(op, "name_hint", ""))).removeprefix("relax.")
    return f"{fn_name}/{var.name}" + (f" ({name})" if name else "")


def _if_step(mod: ir.IRModule, fn_name: str, var: relax.Var, value: relax.If) -> Steps[IfStep]:
    location = _location(fn_name, var, value)
    then = yield _steps(mod, f"{location}.then", (), value.true_branch)
    otherwise = yield _steps(mod, f"{location}.else", (), value.false_branch)
    free = tuple(relax.analysis.free_vars(value))
    return IfStep(var, value.cond, then, otherwise, free, location)


def _step(mod: ir.IRModule, fn_name: str, binding: relax.Binding) -> Step | None:
    """Return the engine's step for a binding, None when it belongs to a segment."""
    if isinstance(binding, relax.MatchCast):
        return None
    value, var = binding.value, binding.var
    location = _location(fn_name, var, value)
    if isinstance(value, relax.Function):
        raise _cannot(location, "a local function cannot be run", "Lift it with LambdaLift.")
    if _is_alias(value):
        return AliasStep(var, value)
    if not isinstance(value, ir.Call):
        return None
    if isinstance(value.op, ir.GlobalVar):
        if isinstance(mod[value.op], relax.Function):
            return CallStep(var, str(value.op.name_hint), tuple(value.args), location)
        return None
    name = dist_op_name(value)
    if is_done(value):  # the start did the whole collective
        return AliasStep(var, value.args[0])
    if name in ("send", "recv"):
        transfer = decode_transfer(value)
        dtype = str(value.attrs["dtype"]) if name == "recv" else ""
        operand = value.args[0] if name == "send" else None
        return TransferStep(var, transfer, operand, dtype, location)
    if name is not None:
        operand = value.args[0] if len(value.args) else None
        return CollectiveStep(var, decode_collective(value), operand, location)
    return None


def _reads(step: Step) -> list[relax.Var]:
    if isinstance(step, Segment):
        return list(step.inputs)
    if isinstance(step, AliasStep):
        return leaf_vars(step.value)
    if isinstance(step, CallStep):
        return [v for a in step.args for v in leaf_vars(a)]
    if isinstance(step, IfStep):
        return list(step.free)
    return [] if step.operand is None else leaf_vars(step.operand)


def _prim_functions(
    mod: ir.IRModule, bindings: Sequence[relax.Binding]
) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    prim_functions: dict[ir.GlobalVar, tirx.PrimFunc] = {}

    def visit(node: relax.Expr) -> None:
        if isinstance(node, ir.GlobalVar):
            prim_functions[node] = mod[node]

    for binding in bindings:
        relax.analysis.post_order_visit(binding.value, visit)
    return prim_functions


def _segment(
    mod: ir.IRModule, fn_name: str, bindings: Sequence[relax.Binding], needed: set[relax.Var]
) -> Segment | None:
    defined = [b.var for b in bindings]
    defined_here = set(defined)
    inputs: dict[relax.Var, None] = {}
    for binding in bindings:
        for var in relax.analysis.free_vars(binding.value):
            if var not in defined_here:
                inputs.setdefault(var)
    outputs = [v for v in defined if v in needed]
    seq = relax.SeqExpr([relax.BindingBlock(list(bindings))], relax.Tuple(outputs))
    result = relax.TupleType([v.ty for v in outputs])
    pure = not relax.analysis.contains_impure_call(relax.Function(list(inputs), seq, result, True))
    if pure and not outputs:
        return None
    fn = relax.Function(list(inputs), seq, result, pure).with_attr("global_symbol", KERNEL)
    functions: dict[ir.GlobalVar, relax.Function | tirx.PrimFunc] = {
        ir.GlobalVar(KERNEL): fn,
        **_prim_functions(mod, bindings),
    }
    location = f"{fn_name}/{defined[0].name}..{defined[-1].name}"
    if len(relax.analysis.free_symbolic_vars(fn)):
        raise _cannot(location, "its shapes are symbolic", "Bind them with td.bind_dims first.")
    return Segment(ir.IRModule(functions), tuple(inputs), tuple(outputs), location)


def _runs(
    mod: ir.IRModule, name: str, body: relax.SeqExpr, branches: Mapping[relax.Var, Step]
) -> Iterator[tuple[Step | None, list[relax.Binding]]]:
    """Yield runs of bindings between the engine's steps, each with the step that ends it."""
    run: list[relax.Binding] = []
    for block in body.blocks:
        for binding in block.bindings:
            step = branches.get(binding.var) or _step(mod, name, binding)
            if step is None or isinstance(step, AliasStep):
                run.append(binding)
            else:
                yield step, run
                run = []
    yield None, run


def all_steps(function: FunctionSteps) -> Iterator[Step]:
    """Yield the steps of a function, those of branches included."""
    pending = [function]
    while pending:
        for step in pending.pop().steps:
            yield step
            if isinstance(step, IfStep):
                pending += [step.otherwise, step.then]


def make_steps(mod: ir.IRModule, name: str, single: bool = False) -> FunctionSteps:
    """Split the function ``name`` of a level-5 module (without dataflow blocks) into steps.

    With ``single`` each binding is a segment: equal ops of changed programs are compiled once.
    """
    return unrolled(_steps(mod, name, tuple(mod[name].params), mod[name].body, single))


def _steps(
    mod: ir.IRModule,
    name: str,
    params: tuple[relax.Var, ...],
    body: relax.SeqExpr,
    single: bool = False,
) -> Steps[FunctionSteps]:
    branches: dict[relax.Var, Step] = {}
    for var, value in bindings_in(body):
        if isinstance(value, relax.If):
            branches[var] = yield from _if_step(mod, name, var, value)
    groups: list[Step | list[relax.Binding]] = []
    for step, run in _runs(mod, name, body, branches):
        # Tuples and items ride inside a segment; alone they need no kernel.
        aliases = [_step(mod, name, binding) for binding in run]
        if single:
            groups.extend([b] if a is None else a for a, b in zip(aliases, run))
        elif run and None in aliases:
            groups.append(run)
        else:
            groups.extend(alias for alias in aliases if alias is not None)
        if step is not None:
            groups.append(step)
    needed = set(leaf_vars(body.body))
    if not needed and not _is_alias(body.body):
        raise _cannot(name, "the result is not a variable or a tuple", "Normalize the module.")
    steps: list[Step] = []
    drops: list[tuple[relax.Var, ...]] = []
    for group in reversed(groups):
        step = _segment(mod, name, group, needed) if isinstance(group, list) else group
        if step is None:
            continue
        reads = list(dict.fromkeys(_reads(step)))
        drops.append(tuple(v for v in reads if v not in needed))
        needed.update(reads)
        steps.append(step)
    return FunctionSteps(name, params, tuple(steps[::-1]), body.body, tuple(drops[::-1]))

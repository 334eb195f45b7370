# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run a sharded call on the devices of a mesh axis, in lockstep.

The local form writes straight-line calls. Those between two collectives form a function, which
each device runs on its values; a collective is interpreted for all devices at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm import ir, relax

from tvm_distir.core.ir import R, device_mesh, flat_types, static_shape
from tvm_distir.core.ir.operators import dist_op_name
from tvm_distir.core.ops import (
    BlockMemo,
    CallSharding,
    Factor,
    LocalCall,
    Operand,
    expected_mismatch,
    local_form,
    registration_of,
    result_type,
    shard,
)
from tvm_distir.core.rewriting import (
    BlockWriter,
    leaves_of,
    rebuild,
    substitute,
    tensor_args,
    variables,
)
from tvm_distir.support import LoweringError

from .cases import Case
from .collective_results import meaning
from .machine import Machine

_CONSTANT = "Make it an operand of the case."


@dataclass(frozen=True)
class _Function:
    """Calls between collectives, with their inputs and the results that later steps read."""

    key: Hashable
    inputs: tuple[relax.Var, ...]
    outputs: tuple[relax.Var, ...]


@dataclass(frozen=True)
class _Collective:
    """A binding of a collective."""

    var: relax.Var
    source: relax.Expr | None
    kind: str
    attrs: ir.Attrs


@dataclass
class CaseProgram:
    """The local program of a case whose call follows a factor.

    Attributes
    ----------
    params : list of variables
        The operands' shards.
    results : list of variables
        The results' shards, flattened.
    steps : list
        The steps, in order.
    count : int
        The number of devices.
    """

    params: list[relax.Var]
    results: list[relax.Expr]
    count: int
    steps: list[_Function | _Collective] = field(default_factory=list)

    def run(
        self, machine: Machine, shards: Sequence[Sequence[np.ndarray]]
    ) -> list[list[np.ndarray]]:
        """Return the results on each device, of the operands' shards on each device."""
        devices = [dict(zip(self.params, state, strict=True)) for state in shards]
        for step in self.steps:
            if isinstance(step, _Collective):
                values = [] if step.source is None else [state[step.source] for state in devices]
                outcomes = meaning(step.kind, step.attrs, values, self.count)
                for state, value in zip(devices, outcomes, strict=True):
                    state[step.var] = value
                continue
            for state in devices:
                out = machine.run(step.key, [state[v] for v in step.inputs])
                state.update(zip(step.outputs, out, strict=True))
        return [[state[v] for v in self.results] for state in devices]


def local_program(
    machine: Machine, case: Case, factor: Factor, count: int, key: Hashable
) -> CaseProgram:
    """Write the local form of a case's call, and add its functions to a machine.

    Raises
    ------
    LoweringError
        As :func:`.sharding.local_form`; DIST0505 when the form is not of the shards' types.
    """
    call = _typed_call(case)
    builder = relax.BlockBuilder()
    writer = BlockWriter(builder, False)
    mesh = device_mesh({"devices": count})
    var = relax.Var("value", call.ty)
    rows = [(R if d is None else d,) for d in (*factor.ins, *factor.outs)]
    exprs = [x for arg in tensor_args(call) for x, _, _ in leaves_of(arg)]
    leaves = [*(x.ty for x in exprs), *flat_types(call.ty)]
    shards = [
        shard(static_shape(ty) or (), row, (count,), str(ty.dtype))
        for ty, row in zip(leaves, rows, strict=True)
    ]
    ins, outs = shards[: len(factor.ins)], shards[len(factor.ins) :]
    terms = ((0, factor.kind),) if factor.reduces else ()
    form = CallSharding((factor,), tuple(rows[: len(ins)]), tuple(rows[len(ins) :]), terms, None)
    params: list[relax.Var] = []
    operands: list[Operand] = []
    for x, operand_shard in zip(exprs, ins, strict=True):
        if isinstance(x, ir.Var):
            x = relax.Var(
                f"operand{len(params)}",
                relax.TensorType(list(operand_shard.local), operand_shard.dtype),
            )
            params.append(x)
        elif operand_shard.local != operand_shard.global_shape:
            raise LoweringError(
                "DIST0505", "a sharded constant", location=case.name, remedy=_CONSTANT
            )
        operands.append(Operand(x, None, operand_shard, False))
    cx = LocalCall(call, form, call.args, operands, outs, mesh, writer, "main", var, BlockMemo())
    kernels: dict[ir.GlobalVar, ir.GlobalVar] = {}
    value = builder.normalize(local_form(cx, registration_of(case.op), case.mod, kernels))
    if wrong := expected_mismatch(value.ty, outs):
        raise LoweringError("DIST0505", wrong, location=case.name, remedy="Correct its local form.")
    program = CaseProgram(params, _results(writer, value, len(outs)), count)
    kernels_by_gv = {gv: machine.kernel(f, str(gv.name_hint)) for gv, f in kernels.values()}
    _cut_in_steps(machine, program, writer.bindings, kernels_by_gv, key)
    return program


def _typed_call(case: Case) -> ir.Call:
    """Return the call with its result type; a PrimFunc's call states it."""
    if case.mod is None:
        return relax.BlockBuilder().normalize(case.call)
    return rebuild(case.call, case.call.op, case.call.args, result_type(case.call))


def reference_function(machine: Machine, case: Case) -> relax.Function:
    """Return the case's call as a function of its operands."""
    call = case.call
    if case.mod is not None:
        target = machine.kernel(case.mod[call.args[0]], str(call.args[0].name_hint))
        call = ir.Call(call.op, [target, *call.args[1:]], call.attrs, call.ty_args)
    value = relax.BlockBuilder().normalize(call)
    result = relax.Var("result", value.ty)
    return _function(case.operands, [(result, value)], result)


def _function(
    params: Sequence[relax.Var],
    bindings: Sequence[tuple[relax.Var, relax.Expr]],
    result: relax.Expr,
) -> relax.Function:
    block = relax.BindingBlock([relax.VarBinding(var, value) for var, value in bindings])
    return relax.Function(list(params), relax.SeqExpr([block], result), result.ty)


def _results(writer: BlockWriter, value: relax.Expr, count: int) -> list[relax.Expr]:
    """Return the results as variables, tuples unpacked."""
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    if not isinstance(value, ir.Var):
        value = writer.emit(value, "value")
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    return [writer.emit(relax.TupleGetItem(value, i), "item") for i in range(count)]


def _cut_in_steps(
    machine: Machine,
    program: CaseProgram,
    bindings: Sequence[relax.Binding],
    kernels: dict[ir.GlobalVar, ir.GlobalVar],
    key: Hashable,
) -> None:
    """Split bindings at the collectives."""
    pending: list[relax.Binding] = []

    def close(rest: Sequence[relax.Binding]) -> None:
        if not pending:
            return
        live = {v for b in rest for v in variables(b.value)} | set(program.results)
        defined = [b.var for b in pending]
        outputs = tuple(v for v in defined if v in live)
        read = dict.fromkeys(v for b in pending for v in variables(b.value) if v not in defined)
        name = (key, len(program.steps))
        machine.add(name, _renamed(tuple(read), pending, outputs, kernels))
        program.steps.append(_Function(name, tuple(read), outputs))
        pending.clear()

    for number, binding in enumerate(bindings):
        kind = dist_op_name(binding.value)
        if kind is None:
            pending.append(binding)
            continue
        close(bindings[number:])
        args = binding.value.args
        source = args[0] if len(args) else None
        program.steps.append(_Collective(binding.var, source, kind, binding.value.attrs))
    close([])


def _renamed(
    inputs: Sequence[relax.Var],
    bindings: Sequence[relax.Binding],
    outputs: Sequence[relax.Var],
    kernels: dict[ir.GlobalVar, ir.GlobalVar],
) -> relax.Function:
    """Return a copy of a function with fresh variables, by which equal functions are recognized."""
    env = {**kernels, **{v: relax.Var(f"x{i}", v.ty) for i, v in enumerate(inputs)}}
    new: list[tuple[relax.Var, relax.Expr]] = []
    for binding in bindings:
        value = substitute(binding.value, env)
        env[binding.var] = relax.Var("y", binding.var.ty)
        new.append((env[binding.var], value))
    fields = [env[v] for v in outputs]
    if len(fields) == 1:
        return _function([env[v] for v in inputs], new, fields[0])
    result = relax.Var("results", relax.TupleType([f.ty for f in fields]))
    return _function([env[v] for v in inputs], [*new, (result, relax.Tuple(fields))], result)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Export a Relax function to values and steps."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tvm import ir, relax

from tvm_distir.core.ir import TENSOR_TYPES, handle
from tvm_distir.core.ir.attributes import CODEGEN_ATTR, COMPOSITE_ATTR
from tvm_distir.core.ir.operators import (
    COLLECTIVES,
    EXPERT_MATMUL_OP,
    PACKED_PREFIX,
    TRANSFERS,
    collective_op,
    is_done,
)
from tvm_distir.core.ops import LikeKernels, StaticTensor, static_tensor
from tvm_distir.core.rewriting import VARIABLES, has_attr
from tvm_distir.core.rewriting.native import (
    ALIAS,
    FUNCTION_CALL,
    ITEM,
    OP_CALL,
    TUPLE,
    read_functions,
)
from tvm_distir.support import GenericConst, SimulationError

from .call_steps import collective, computation, constants_of, copied, is_nothing, stored, transfer
from .library_kernels import library_kernel, only_kernel
from .parts import Function, Op, Value
from .trees import Tree, leaves

_SKIP = (
    'Export the module before it, or LegalizeOps(skip_ops=["relax.dist.send", "relax.dist.recv"]).'
)


class FunctionExporter:
    """Exporter of a function to a :class:`Function`; like calls are exported once.

    Parameters
    ----------
    mod : IRModule
    name : str
        The name of the function, for messages.
    fn : relax.Function

    Attributes
    ----------
    callees : list of str
        Functions it calls, in the order of the first call.
    branches : dict of str to Function
        The branches of its ``If`` that are more than a call, as functions with separate names.
    """

    def __init__(self, mod: ir.IRModule, name: str, fn: relax.Function) -> None:
        self.mod, self.name, self.fn = mod, name, fn
        self.callees: list[str] = []
        self.branches: dict[str, relax.Function] = {}
        self.values: list[Value] = []
        self.ops: list[Op] = []
        (self.reading,) = read_functions([fn])
        self.uses = self.reading.uses
        self.kernels = LikeKernels(mod, self.reading)
        self.trees: list[Tree] = []  # by number of variable
        self.constants: dict[Any, Tree] = {}
        self.tensors: dict[int, tuple[type, list[Any]]] = {}  # by class of types
        self.forms: dict[tuple[int, bool], Op | None] = {}  # first op of like calls
        self.patterns: dict[str, Op | None] = {}  # kernels of libraries, by callee
        self.devices: Sequence[int] = ()

    def run(
        self, mesh: int, rows: Sequence[Mapping[str, Any]] | None, devices: Sequence[int] = ()
    ) -> Function:
        """Export; ``rows`` describes the parameters of an entry.

        ``devices`` run it, where not all of its mesh do.
        """
        self.devices = devices
        params: list[int] = []
        for i, param in enumerate(self.fn.params[:]):
            extra = rows[i] if rows is not None else {}
            self.trees.append(self.variable(param, str(param.name), extra))
            params.extend(leaves(self.trees[-1]))
        for number in range(len(self.reading.bindings)):
            self.trees.append(self.binding(number))
        results = leaves(self.tree(self.fn.body.body, f"{self.name}/result"))
        for value in stored(self.ops):
            self.values[value] = self.values[value]._replace(role="host")
        return Function(mesh, tuple(params), tuple(self.ops), tuple(results), tuple(self.values))

    def refuse(self, location: str, problem: str, remedy: str) -> SimulationError:
        """Make the error of a module that cannot be exported."""
        return SimulationError(
            "DIST0714", problem, location=f"{self.name}/{location}", remedy=remedy
        )

    def tensor(self, ty: Any, name: str) -> StaticTensor:
        """Describe the values of a tensor type; ``name`` has it."""
        tensor = static_tensor(ty)
        if tensor is None:
            raise self.refuse(
                name,
                f"the shape of {ty} is not known before the run",
                "Bind symbolic dims with td.bind_dims before the module is distributed.",
            )
        return tensor

    def declare(self, ty: Any, name: str, extra: Mapping[str, Any] | None = None) -> Tree:
        """Add the values of a type, tuples flattened."""
        if isinstance(ty, relax.TupleType):
            fields = enumerate(ty.fields[:])
            return tuple(self.declare(field, f"{name}.{i}", extra) for i, field in fields)
        if type(ty) not in TENSOR_TYPES:
            return None
        self.values.append(Value(name, *self.tensor(ty, name), **(extra or {})))
        return len(self.values) - 1

    def variable(self, var: Any, name: str, extra: Mapping[str, Any]) -> Tree:
        """Add the values of the next variable, described as others of its type are."""
        kind, first = self.reading.types[len(self.trees)], len(self.values)
        if kind not in self.tensors:
            out = self.declare(var.ty, name, extra)
            values = self.values[first:]
            if out == first or out == tuple(range(first, first + len(values))):  # no tuple inside
                self.tensors[kind] = type(out), [(v[0][len(name) :], *v[1:4]) for v in values]
            return out
        tree_type, tensors = self.tensors[kind]
        self.values += [Value(name + end, *tensor, **extra) for end, *tensor in tensors]
        return first if tree_type is int else tuple(range(first, len(self.values)))

    @functools.cached_property
    def numbers(self) -> dict[int, int]:
        """Numbers of the variables, by handle."""
        return {handle(var): number for number, var in enumerate(self.reading.variables)}

    def tree(self, expr: Any, location: str) -> Tree:
        """Return the values of an argument."""
        if type(expr) in VARIABLES:
            return self.trees[self.numbers[handle(expr)]]
        if type(expr) is relax.Tuple:
            return tuple(self.tree(field, location) for field in expr.fields[:])
        if type(expr) is relax.TupleGetItem:
            return self.tree(expr.tuple_value, location)[int(expr.index)]
        if isinstance(expr, GenericConst):
            if expr not in self.constants:
                name = f"constant{len(self.values)}"
                self.constants[expr] = self.declare(expr.ty, name, {"role": "constant"})
            return self.constants[expr]
        if isinstance(expr, ir.Call | relax.If | relax.Function | relax.SeqExpr):
            raise self.refuse(
                location, "an expression is nested in another", "Normalize the module."
            )
        return None

    def binding(self, number: int) -> Tree:
        """Export a binding."""
        reading = self.reading
        var, value = reading.variables[len(self.trees)], reading.values[number]
        name = str(var.name)
        kind = reading.kinds[number]
        if kind in (OP_CALL, FUNCTION_CALL):
            return self.like_call(number, name, value)
        if kind in (TUPLE, ITEM, ALIAS):
            return self.tree(value, name)
        if isinstance(value, relax.If):
            return self.choice(name, value, var.ty)
        if isinstance(value, ir.Call):
            return self.call(number, name, value, self.inputs(value, name))
        return self.tree(value, name)

    def inputs(self, call: ir.Call, name: str) -> list[int]:
        """Return the values that a call bound to ``name`` reads."""
        return [leaf for arg in call.args[:] for leaf in leaves(self.tree(arg, name))]

    def like_call(self, number: int, name: str, call: ir.Call) -> Tree:
        """Export a call as the first like it."""
        reading, position = self.reading, len(self.trees)
        used = self.uses[number]
        like = reading.like[number]
        if like < 0:
            inputs = self.inputs(call, name)
        else:
            constants = constants_of(call.args[:]) if -1 in used else iter(())
            trees = (self.trees[n] if n >= 0 else self.tree(next(constants), name) for n in used)
            inputs = list(chain.from_iterable(map(leaves, trees)))
        var, key = reading.variables[position], self.kernels.keys[number]
        form = self.forms.get(key)
        if like < 0 or form is None:
            before = len(self.ops)
            out = self.call(number, name, call, inputs)
            if like >= 0 and len(self.ops) > before:
                self.forms[key] = self.ops[-1]
            return out
        out = self.variable(var, name, {})
        outputs = (out,) if isinstance(out, int) else tuple(leaves(out))
        self.ops.append(form._replace(name=name, inputs=tuple(inputs), outputs=outputs))
        return out

    def call(self, number: int, name: str, call: ir.Call, inputs: list[int]) -> Tree:
        """Export a call, which a binding binds to ``name``."""
        if isinstance(call.op, ir.GlobalVar) and isinstance(self.mod[call.op], relax.Function):
            return self.call_function(name, call, inputs)
        ty = self.reading.bound(number).ty
        out = self.declare(ty, name)
        outputs = leaves(out)
        dist = collective_op(call)
        if dist in COLLECTIVES:
            op = collective(self.mod, dist, call, ty)
        elif dist in TRANSFERS:
            op = transfer(self.mod, dist, call, self.values[outputs[0]], self.devices)
        elif is_done(call):
            op = Op("", "wait", str(call.op.name))
        elif (copy := copied(call, [self.values[value] for value in inputs])) is not None:
            op = copy
        elif outputs or not is_nothing(call, ty):
            op = computation(self.kernels.of(number))
            if op.op.startswith(PACKED_PREFIX):
                raise self.refuse(name, f"LegalizeOps has made it a call of {op.op}", _SKIP)
            if op.op == EXPERT_MATMUL_OP:
                op = op._replace(selects=(int(call.attrs["top_k"]), int(call.attrs["experts"])))
        else:
            return out
        self.ops.append(op._replace(name=name, inputs=tuple(inputs), outputs=tuple(outputs)))
        return out

    def call_function(self, name: str, call: ir.Call, inputs: list[int]) -> Tree:
        """Add a call of a private function, or the kernel of a library that one is."""
        callee = str(call.op.name_hint)
        out = self.variable(self.reading.variables[len(self.trees)], name, {})
        outputs = tuple(leaves(out))
        if callee not in self.patterns:
            self.patterns[callee] = self.library_kernel(callee)
        kernel = self.patterns[callee]
        if kernel is not None:
            operands = tuple(inputs[position] for position in kernel.inputs)
            self.ops.append(kernel._replace(name=name, inputs=operands, outputs=outputs))
            return out
        if callee not in self.callees:
            self.callees.append(callee)
        self.ops.append(Op(name, "call", callee, tuple(inputs), outputs, callee=callee))
        return out

    def library_kernel(self, callee: str) -> Op | None:
        """Return the kernel of a function that is a pattern of a library, or only calls one.

        Its operands are positions of parameters. None for other functions.
        """
        fn = self.mod[callee]
        if not has_attr(fn, COMPOSITE_ATTR) and not has_attr(fn, CODEGEN_ATTR):
            return None
        body = FunctionExporter(self.mod, callee, fn).run(0, None)
        pattern = str(fn.attrs[COMPOSITE_ATTR]) if COMPOSITE_ATTR in fn.attrs else ""
        return library_kernel(pattern, body) if pattern else only_kernel(body)

    def choice(self, name: str, value: relax.If, ty: Any) -> Tree:
        """Add an ``If``: the condition, and both functions that may be called."""
        inputs, called = leaves(self.tree(value.cond, name)), []
        if len(inputs) != 1:
            raise self.refuse(name, "a condition is not a tensor", "Make the condition a tensor.")
        for side, branch in (("then", value.true_branch), ("else", value.false_branch)):
            callee, args = self.branch(f"{self.name}/{name}.{side}", branch)
            called.append(callee)
            inputs += [leaf for arg in args for leaf in leaves(self.tree(arg, name))]
            if callee not in self.callees:
                self.callees.append(callee)
        out = self.declare(ty, name)
        outputs = tuple(leaves(out))
        self.ops.append(
            Op(name, "branch", "If", tuple(inputs), outputs, callee=called[0], otherwise=called[1])
        )
        return out

    def branch(self, name: str, branch: relax.SeqExpr) -> tuple[str, list[Any]]:
        """Return the callee of a branch and its arguments; other branches become functions."""
        bindings = [b for block in branch.blocks for b in block.bindings]
        if len(bindings) == 1 and branch.body.same_as(bindings[0].var):
            call = bindings[0].value
            if isinstance(call, ir.Call) and isinstance(call.op, ir.GlobalVar):
                return str(call.op.name_hint), list(call.args)
        unique, number = name, 0
        while unique in self.branches:
            number += 1
            unique = f"{name}#{number}"
        free = list(relax.analysis.free_vars(branch))
        self.branches[unique] = relax.Function(free, branch, branch.body.ty)
        return unique, free

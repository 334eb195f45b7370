# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Propagate sharding annotations through a module, calls of private functions included.

The dims of all tensors are the nodes of a graph, and so is the device mesh of each tensor. An edge
joins two nodes that are to be sharded alike, such as the rows of both sides of ``R.nn.relu``. Each
annotation is a source, which spreads along the edges. Where several sources reach a node, it takes
the one that comes along the better kind of path:

1. the node is annotated itself;
2. the path goes from producers to consumers only;
3. the path goes both ways;
4. the path goes from consumers to producers only.

Of equal ones, it takes the one that is annotated first in the module, so that the result does not
depend on addresses. One traversal spreads all sources with a work list: its time is linear in the
number of edges times the number of different shardings (pairs of a mesh and a mesh axis), and its
depth is constant.

Each call of a private function has nodes of its own. Calls that end up with the same placements
share a rewritten function; a function that is used with several placements is written once for
each. Where the choice for a tensor differs from what type inference derives from the operands, a
``redistribute`` is inserted.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax.distributed import DTensorType, Placement, PlacementSpec
from tvm.relax.op.distributed import redistribute

from .axis_graph import FORWARD, AxisGraph, Leaf, kernel_edges, op_edges
from .kernel_axes import axis_groups

DISTRIBUTED_PACKED = {
    f"vm.builtin.attention_kv_cache_{name}": f"vm.builtin.distributed.attention_kv_cache_{name}"
    for name in ("append", "view")
}


def _tensor_types(ty: Any) -> list[Any]:
    """Return the types of the tensors of a value, None for other fields."""
    if isinstance(ty, relax.TupleType):
        return [leaf for field in ty.fields for leaf in _tensor_types(field)]
    if isinstance(ty, DTensorType):
        return [ty.tensor_ty]
    return [ty if isinstance(ty, relax.TensorType) else None]


def _bindings(function: relax.Function) -> Iterator[relax.Binding]:
    """Yield the bindings of a function in order."""
    for block in function.body.blocks:
        yield from block.bindings


def _operands(call: relax.Call) -> list[relax.Expr]:
    """Return the operands of a call, those of a kernel for ``call_tir``."""
    return list(call.args[1].fields if _is_op(call, "call_tir") else call.args)


def _is_op(value: relax.Expr, name: str) -> bool:
    """Return whether a value is a call of a Relax op."""
    is_call = isinstance(value, relax.Call) and isinstance(value.op, ir.Op)
    return is_call and value.op.name == f"relax.{name}"


class Instance:
    """A function as one of its calls uses it: its nodes in the graph.

    Attributes
    ----------
    leaves : dict of Var to list of (Leaf or None)
        The tensors of each variable; None stands for what is no tensor.
    callees : dict of Var to Instance
        The instance of each private function that it calls, by the variable of the call.
    constants : dict of (Var, int) to Leaf
        Constant operands, by the variable that the call is bound to and their position.
    """

    def __init__(self, function: relax.Function, name: str) -> None:
        self.function, self.name = function, name
        self.leaves: dict[relax.Var, list[Leaf | None]] = {}
        self.callees: dict[relax.Var, Instance] = {}
        self.constants: dict[tuple[relax.Var, int], Leaf] = {}

    def all_leaves(self) -> Iterator[Leaf]:
        """Yield the tensors of the function and of its callees."""
        for leaves in self.leaves.values():
            yield from (leaf for leaf in leaves if leaf is not None)
        for callee in self.callees.values():
            yield from callee.all_leaves()

    def fields(self, value: relax.Expr) -> list[Leaf | None]:
        """Return the tensors of a variable, a tuple of them, or a field of one."""
        if isinstance(value, relax.Var) and value in self.leaves:
            return self.leaves[value]
        if isinstance(value, relax.Tuple):
            return [leaf for field in value.fields for leaf in self.fields(field)]
        if isinstance(value, relax.TupleGetItem):
            before = value.tuple_value.ty.fields[: value.index]
            start = sum(len(_tensor_types(field)) for field in before)
            count = len(_tensor_types(value.tuple_value.ty.fields[value.index]))
            return self.fields(value.tuple_value)[start : start + count]
        return [None] * len(_tensor_types(value.ty))


class _GraphBuilder:
    """Builds the graph of a function and of the private functions that it calls."""

    def __init__(self, mod: ir.IRModule) -> None:
        self.mod, self.graph = mod, AxisGraph()
        self.callers: list[str] = []

    def build(self, name: ir.GlobalVar) -> Instance:
        """Return an instance of a function, with nodes of its own."""
        if name.name_hint in self.callers:
            cycle = " -> ".join([*self.callers, name.name_hint])
            raise ValueError(f"a private function that calls itself has no placements: {cycle}")
        self.callers.append(name.name_hint)
        function = self.mod[name]
        instance = Instance(function, name.name_hint)
        for param in function.params:
            self._define(instance, param)
        for binding in _bindings(function):
            if not isinstance(binding, relax.VarBinding) or isinstance(binding.value, relax.If):
                raise ValueError(
                    f"sharding propagation knows no {type(binding).__name__}: {binding}"
                )
            self._define(instance, binding.var)
            self._bind(instance, binding.var, binding.value)
        self.callers.pop()
        return instance

    def _define(self, instance: Instance, var: relax.Var) -> None:
        """Add the nodes of a variable."""
        types = _tensor_types(var.ty)
        instance.leaves[var] = [None if t is None else self.graph.leaf(t) for t in types]

    def _bind(self, instance: Instance, var: relax.Var, value: relax.Expr) -> None:
        """Add the edges of a binding."""
        if not isinstance(value, relax.Call):
            self._alias(instance.fields(value), instance.leaves[var])
            return
        results = [leaf for leaf in instance.leaves[var] if leaf is not None]
        arguments = _operands(value)
        if isinstance(value.op, ir.GlobalVar):
            callee = instance.callees[var] = self.build(value.op)
            for param, argument in zip(callee.function.params, arguments, strict=True):
                self._alias(instance.fields(argument), callee.leaves[param])
            self._alias(callee.fields(callee.function.body.body), instance.leaves[var])
            return
        operands = [self._operand(instance, var, i, x) for i, x in enumerate(arguments)]
        tensors = [leaf for leaf in operands if leaf is not None]
        self.graph.join((x.mesh, y.mesh, FORWARD) for x in tensors for y in results)
        if _is_op(value, "call_tir"):
            self.graph.join(kernel_edges(self.mod[value.args[0]], operands, results))
        elif isinstance(value.op, ir.Op) and results:
            self.graph.join(op_edges(value, tensors, results[0]))
        if _is_op(value, "dist.annotate_sharding"):
            self._annotate(results[0], value.attrs)

    def _operand(
        self, instance: Instance, var: relax.Var, position: int, value: relax.Expr
    ) -> Leaf | None:
        """Return the tensor of an operand; a constant has nodes of its own."""
        if isinstance(value, ir.GenericConst) and isinstance(value.ty, relax.TensorType):
            leaf = instance.constants[var, position] = self.graph.leaf(value.ty)
            return leaf
        fields = instance.fields(value)
        return fields[0] if len(fields) == 1 else None

    def _alias(self, values: list[Leaf | None], targets: list[Leaf | None]) -> None:
        """Join two values that are the same tensors."""
        for value, target in zip(values, targets, strict=True):
            if value is not None and target is not None:
                nodes = range(value.type.ndim + 1)
                self.graph.join((value.mesh + n, target.mesh + n, FORWARD) for n in nodes)

    def _annotate(self, leaf: Leaf, attrs: Any) -> None:
        """Make the nodes of an annotated tensor sources."""
        for axis, spec in enumerate(attrs.placement.dim_specs):
            if int(spec.axis) >= 0:
                self.graph.annotate(leaf.dim(int(spec.axis)), attrs.device_mesh, axis)
        self.graph.annotate(leaf.mesh, attrs.device_mesh, -1)


class _Rewriter:
    """Writes functions with DTensors in place of tensors."""

    def __init__(self, mod: ir.IRModule, rest: ir.IRModule, graph: AxisGraph) -> None:
        self.mod, self.graph = mod, graph
        self.builder = relax.BlockBuilder(rest)
        self.written: dict[tuple[Any, ...], ir.GlobalVar] = {}

    def write_callees(self, instance: Instance) -> None:
        """Write the private functions that an instance calls, callees first."""
        for callee in instance.callees.values():
            key = self.signature(callee)
            if key not in self.written:
                self.write_callees(callee)
                self.written[key] = self.builder.add_func(self.function(callee), callee.name)

    def signature(self, instance: Instance) -> tuple[Any, ...]:
        """Return what tells the rewritten forms of a function apart."""
        choices = []
        for leaf in instance.all_leaves():
            mesh, shards = self.graph.choice.get(leaf.mesh), self.graph.shards(leaf)
            choices.append((mesh, *sorted(shards.items())))
        return (instance.name, *choices)

    def function(self, instance: Instance) -> relax.Function:
        """Return the function of an instance with the types that propagation chose."""
        function = instance.function
        env: dict[relax.Var, relax.Expr] = {}
        for param in function.params:
            env[param] = relax.Var(param.name, self._type(param.ty, instance.leaves[param]))
        params = [env[param] for param in function.params]
        self.builder.begin_scope(params)
        blocks = []
        for block in function.body.blocks:
            is_dataflow = isinstance(block, relax.DataflowBlock)
            begin = "_begin_dataflow_block" if is_dataflow else "_begin_binding_block"
            getattr(self.builder, begin)()
            for binding in block.bindings:
                env[binding.var] = self._bind(instance, binding, env, is_dataflow)
            blocks.append(self.builder._end_block())
        body = relax.SeqExpr(blocks, self._replace(function.body.body, env))
        body = self.builder.normalize(body)
        self.builder.end_scope()
        return relax.Function(params, body, None, function.is_pure, function.attrs)

    def _type(self, ty: Any, leaves: list[Leaf | None]) -> Any:
        """Return a type with the DTensors of the given leaves in place of tensors."""
        if isinstance(ty, relax.TupleType):
            fields, start = [], 0
            for field in ty.fields:
                count = len(_tensor_types(field))
                fields.append(self._type(field, leaves[start : start + count]))
                start += count
            return relax.TupleType(fields)
        return ty if leaves[0] is None else self.graph.type_of(leaves[0])

    def _replace(self, value: relax.Expr, env: dict[relax.Var, relax.Expr]) -> relax.Expr:
        """Return a value of an operand in the new function."""
        if isinstance(value, relax.Var):
            return env.get(value, value)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._replace(field, env) for field in value.fields])
        if isinstance(value, relax.TupleGetItem):
            whole = self._replace(value.tuple_value, env)
            is_tuple = isinstance(whole, relax.Tuple)
            return whole.fields[value.index] if is_tuple else relax.TupleGetItem(whole, value.index)
        return value

    def _bind(
        self,
        instance: Instance,
        binding: relax.VarBinding,
        env: dict[relax.Var, relax.Expr],
        is_dataflow: bool,
    ) -> relax.Expr:
        """Emit a binding, and return what stands for its variable."""
        var, value = binding.var, binding.value
        is_output = is_dataflow and not isinstance(var, relax.DataflowVar)
        expected = self._type(var.ty, instance.leaves[var])
        if isinstance(value, relax.Call):
            new = self._call(instance, var, value, env)
        else:
            new = self._replace(value, env)
        if _is_op(value, "dist.annotate_sharding") and not is_output:
            return self._placed(new, expected)
        new = self.builder.normalize(new)
        if self._differs(new.ty, expected):
            return self._placed(self.builder.emit(new), expected, is_output, var.name)
        emit = self.builder.emit_output if is_output else self.builder.emit
        return emit(new, name_hint=var.name)

    def _differs(self, ty: Any, expected: Any) -> bool:
        """Return whether a tensor in a type has another placement than it should have."""
        if isinstance(expected, relax.TupleType):
            return any(map(self._differs, ty.fields, expected.fields))
        return isinstance(expected, DTensorType) and not tvm_ffi.structural_equal(ty, expected)

    def _placed(
        self, value: relax.Expr, expected: Any, is_output: bool = False, name: str = ""
    ) -> relax.Expr:
        """Return a value with the placements that it should have, redistributed where needed."""
        if not self._differs(value.ty, expected):
            return value
        if isinstance(expected, relax.TupleType):
            fields = [relax.TupleGetItem(value, i) for i in range(len(expected.fields))]
            fields = [self.builder.emit(field) for field in fields]
            placed: Any = relax.Tuple(list(map(self._placed, fields, expected.fields)))
            return self.builder.emit_output(placed, name) if is_output else placed
        moved = redistribute(value, expected.device_mesh, expected.placement)
        return (self.builder.emit_output if is_output else self.builder.emit)(moved, name_hint=name)

    def _call(
        self, instance: Instance, var: relax.Var, call: relax.Call, env: dict[relax.Var, relax.Expr]
    ) -> relax.Expr:
        """Return a call with new operands."""
        if _is_op(call, "dist.annotate_sharding"):
            return self._replace(call.args[0], env)
        arguments = []
        for position, value in enumerate(_operands(call)):
            constant = instance.constants.get((var, position))
            if constant is None:
                arguments.append(self._replace(value, env))
            else:
                arguments.append(self._constant(value, constant))
        expected = self._type(var.ty, instance.leaves[var])
        if isinstance(call.op, ir.GlobalVar):
            return self._private_call(instance.callees[var], arguments)
        if _is_op(call, "call_tir"):
            inferred = self._kernel_type(call, arguments, instance.leaves[var], expected)
            args = [call.args[0], relax.Tuple(arguments), *call.args[2:]]
            return relax.Call(call.op, args, call.attrs, [inferred])
        if isinstance(call.op, relax.ExternFunc):
            name = str(call.op.global_symbol)
            op = relax.ExternFunc(DISTRIBUTED_PACKED.get(name, name))
            return relax.Call(op, arguments, call.attrs, [expected])
        return relax.Call(call.op, arguments, call.attrs, call.ty_args)

    def _constant(self, value: ir.GenericConst, leaf: Leaf) -> ir.GenericConst:
        """Return a constant that all workers hold."""
        if self.graph.shards(leaf):
            raise ValueError(f"a constant cannot be sharded; make it a parameter: {leaf.type}")
        return ir.GenericConst(value.value, self.graph.type_of(leaf))

    def _private_call(self, callee: Instance, arguments: list[relax.Expr]) -> relax.Call:
        """Return a call of a callee, which is written already."""
        params = callee.function.params
        types = [self._type(param.ty, callee.leaves[param]) for param in params]
        placed = list(map(self._placed, arguments, types))
        return relax.Call(self.written[self.signature(callee)], placed)

    def _kernel_type(
        self,
        call: relax.Call,
        arguments: list[relax.Expr],
        leaves: list[Leaf | None],
        expected: Any,
    ) -> Any:
        """Return the type of what a kernel computes from shards of its operands.

        A dim of a result is sharded if a loop that runs over it also runs over a sharded dim of an
        operand. If operands disagree, the choice of propagation is taken if it is among theirs.
        """
        if not any(isinstance(value.ty, DTensorType) for value in arguments):
            return expected
        sharded: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        for group in axis_groups(self.mod[call.args[0]]):
            operands = [(arguments[p].ty, dim) for p, dim in group if p < len(arguments)]
            axes = [axis for ty, dim in operands for axis in _axes_of(ty, dim)]
            for position, dim in group:
                if position >= len(arguments):
                    sharded[position - len(arguments), dim].extend(axes)
        types = [
            self._kernel_result(leaf, {d: a for (r, d), a in sharded.items() if r == index})
            for index, leaf in enumerate(leaves)
            if leaf is not None
        ]
        return relax.TupleType(types) if isinstance(expected, relax.TupleType) else types[0]

    def _kernel_result(self, leaf: Leaf, candidates: dict[int, list[int]]) -> DTensorType:
        """Return the type of a result whose dims can be sharded by the given mesh axes."""
        chosen = {dim: axis for axis, dim in self.graph.shards(leaf).items()}
        mesh = self.graph.type_of(leaf).device_mesh
        specs = [PlacementSpec.replica()] * len(mesh.shape)
        for dim, axes in sorted(candidates.items()):
            if axes:
                axis = chosen[dim] if chosen.get(dim) in axes else axes[0]
                specs[axis] = PlacementSpec.sharding(dim)
        return DTensorType(leaf.type, mesh, Placement(specs))


def _axes_of(ty: Any, dim: int) -> list[int]:
    """Return the mesh axes that shard a dim of a tensor."""
    specs = ty.placement.dim_specs if isinstance(ty, DTensorType) else []
    return [axis for axis, spec in enumerate(specs) if int(spec.axis) == dim]


def _is_annotated(function: relax.Function) -> bool:
    """Return whether a function annotates a tensor."""
    values = (getattr(binding, "value", None) for binding in _bindings(function))
    return any(_is_op(value, "dist.annotate_sharding") for value in values)


def _is_private(function: relax.Function) -> bool:
    """Return whether a function cannot be called from outside of its module."""
    return function.attrs is None or "global_symbol" not in function.attrs


def _reachable(mod: ir.IRModule, name: ir.GlobalVar) -> set[str]:
    """Return the names of a function and of the Relax functions that it calls, also indirectly."""
    pending, matches = [name], set()
    while pending:
        current = pending.pop()
        if current.name_hint in matches or not isinstance(mod[current], relax.Function):
            continue
        matches.add(current.name_hint)
        values = (getattr(binding, "value", None) for binding in _bindings(mod[current]))
        calls = (value for value in values if isinstance(value, relax.Call))
        pending.extend(call.op for call in calls if isinstance(call.op, ir.GlobalVar))
    return matches


@tvm.transform.module_pass(opt_level=1, name="PropagateSharding")
class PropagateSharding:
    """Choose a placement for every tensor of the functions that hold annotations."""

    def transform_module(
        self, mod: ir.IRModule, _context: tvm.transform.PassContext
    ) -> ir.IRModule:
        """Return the module with DTensors in place of tensors, and without annotations.

        Public functions that are annotated, or call annotated ones, are rewritten, with the
        private functions that they call.

        Raises
        ------
        ValueError
            A tensor has no device mesh or no known shape, a constant would be sharded, a private
            function calls itself, or a function has control flow.
        """
        relax_functions = {
            name: function
            for name, function in mod.functions_items()
            if isinstance(function, relax.Function)
        }
        annotated = {name.name_hint for name, fn in relax_functions.items() if _is_annotated(fn)}
        entries, others = [], set()
        for name in sorted(relax_functions, key=lambda name: name.name_hint):
            if not _is_private(mod[name]):
                names = _reachable(mod, name)
                if names & annotated:
                    entries.append(name)
                else:
                    others |= names
        if not entries:
            return mod
        # Private functions that only rewritten functions call give their names to what is written.
        output = set().union(*(_reachable(mod, name) for name in entries)) - others
        output -= {name.name_hint for name in entries}
        return _rewrite(mod, entries, output)


def _rewrite(mod: ir.IRModule, entries: list[ir.GlobalVar], output: set[str]) -> ir.IRModule:
    """Return the module with the entries, and the private functions that they call, rewritten."""
    graph_builder = _GraphBuilder(mod)
    instances = [graph_builder.build(name) for name in entries]
    graph = graph_builder.graph
    graph.propagate()
    for instance in instances:
        graph.block_small_dims(instance.all_leaves())
    if graph.blocked:
        graph.propagate()
    remaining = {name: fn for name, fn in mod.functions_items() if name.name_hint not in output}
    rest = ir.IRModule(remaining, attrs=mod.attrs, global_infos=dict(mod.global_infos))
    rewriter = _Rewriter(mod, rest, graph)
    for name, instance in zip(entries, instances, strict=True):
        rewriter.write_callees(instance)
        rewriter.builder.update_func(name, rewriter.function(instance))
    return rewriter.builder.get()

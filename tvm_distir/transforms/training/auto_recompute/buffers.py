# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Represent functions as calls over buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.relax import Binding, Expr, Var

from tvm_distir.core.ir import value_types
from tvm_distir.core.ops import kernel_of, transposed_operands
from tvm_distir.core.rewriting.native import read_functions
from tvm_distir.support import GenericConst
from tvm_distir.transforms.training.autodiff.saved_values import type_bytes


@dataclass(eq=False)
class Buffer:
    """Memory of a tensor.

    Attributes
    ----------
    size_bytes : int
    weight : bool
        Whether it is a weight, a state, the gradient of a weight, or made of such alone.
    """

    size_bytes: int
    weight: bool = False


Tree = Any
"""A buffer, or a tuple of trees."""


def leaves(tree: Tree) -> Iterator[Buffer]:
    """Return the buffers of a tree, in order."""
    if isinstance(tree, tuple):
        for part in tree:
            yield from leaves(part)
    else:
        yield tree


@dataclass
class CallTask:
    """Call in a function.

    Attributes
    ----------
    var : Var
        The variable that it is bound to.
    reads : list of Buffer
        The buffers of its arguments, in order.
    makes : list of Buffer
    callee : str or None
        The Relax function that is called.
    """

    var: Var
    reads: list[Buffer]
    makes: list[Buffer]
    callee: str | None = None


@dataclass
class BufferTasks:
    """Body of a function.

    Attributes
    ----------
    params : list of Buffer
        Leaves of its parameters.
    tasks : list of CallTask
    result : Tree
    trees : dict of Var to Tree
    constants : list of int
        Bytes of constants, at each mention: they are at hand all the time.
    """

    params: list[Buffer]
    tasks: list[CallTask]
    result: Tree
    trees: dict[Var, Tree]
    constants: list[int] = field(default_factory=list)


Results = Callable[[str, Sequence[Buffer]], tuple[Tree, list[Buffer]]]
"""A function from a function's name and its arguments' buffers to the buffers of its results, and
those that it makes."""


def read_body(
    fn: relax.Function, weights: Sequence[bool], kernels: ir.IRModule, results: Results
) -> BufferTasks:
    """Read a function of pure bindings.

    Parameters
    ----------
    fn : relax.Function
    weights : sequence of bool
        A flag per leaf of its parameters, whether it is a weight.
    kernels : IRModule
    results : callable
        A function that returns the results of called functions.
    """
    (reading,) = read_functions([fn])
    in_place = {reading.variables[i] for i in transposed_operands(reading)}
    flags = iter(weights)
    trees = {
        param: _results(param.ty, lambda ty: Buffer(type_bytes(ty), next(flags)))
        for param in fn.params
    }
    body = BufferTasks([b for param in fn.params for b in leaves(trees[param])], [], None, trees)
    for binding in reading.bindings:
        if isinstance(binding.value, ir.Call):
            body.constants += _constant_bytes(binding.value.args)
        trees[binding.var] = _bound(body, binding, binding.var in in_place, kernels, results)
    body.result = tree_of(fn.body.body, trees)
    return body


def _bound(
    body: BufferTasks, binding: Binding, in_place: bool, kernels: ir.IRModule, results: Results
) -> Tree:
    """Return the buffers of a binding, and add its task if it has a task."""
    var, value = binding.var, binding.value
    if not isinstance(value, ir.Call):
        return tree_of(value, body.trees)
    if isinstance(value.op, ir.GlobalVar):
        reads = [b for arg in value.args for b in leaves(tree_of(arg, body.trees))]
        callee = str(value.op.name_hint)
        tree, makes = results(callee, reads)
        body.tasks.append(CallTask(var, reads, makes, callee))
        return tree
    reads = [
        b for arg in value.args if value_types(arg.ty) for b in leaves(tree_of(arg, body.trees))
    ]
    if len(reads) == 1 and kernel_of(value, kernels, value.ty, in_place).is_view:
        return reads[0]
    alone = bool(reads) and all(b.weight for b in reads)
    tree = _results(value.ty, lambda ty: Buffer(type_bytes(ty), alone))
    body.tasks.append(CallTask(var, reads, list(leaves(tree))))
    return tree


def _constant_bytes(args: Iterable[Expr]) -> Iterator[int]:
    for arg in args:
        if isinstance(arg, GenericConst):
            yield type_bytes(arg.ty)
        elif isinstance(arg, relax.Tuple):
            yield from _constant_bytes(arg.fields)


def _results(ty: ir.Type, make: Callable[[Any], Buffer]) -> Tree:
    if isinstance(ty, relax.TupleType):
        return tuple(_results(field, make) for field in ty.fields)
    return make(ty)


def tree_of(value: Expr, trees: Mapping[Var, Tree]) -> Tree:
    """Return the tree of buffers of an expression over variables."""
    if isinstance(value, ir.Var):
        return trees[value]
    if isinstance(value, relax.Tuple):
        return tuple(tree_of(part, trees) for part in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return tree_of(value.tuple_value, trees)[int(value.index)]
    return _results(value.ty, lambda ty: Buffer(0))  # a constant: at hand

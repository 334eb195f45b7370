# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Let the kernels of experts do what lies around their products."""

from __future__ import annotations

import dataclasses

from tvm_distir.core.ir.operators import EXPERT_MATMUL_OP
from tvm_distir.performance.program.parts import Function, Op
from tvm_distir.performance.program.program import Program
from tvm_distir.support import reachable

from .dataflow import Dataflow

_SELECTION = "relax.topk"
_MOVING = ("memory", "gather")
"""Classes of kernels that compute no products."""


def with_fused_experts(program: Program) -> Program:
    """Give the kernels around products of experts no work of their own.

    Engines read the rows of tokens by their index inside the kernels of experts, which activate
    them and add up the results, so that tokens are never moved into slots (Kwon et al. 2023, vLLM;
    Gale et al. 2023, "MegaBlocks"). The kernels between the selection of experts and the sum over
    them take no time, unless a collective lies between them and the products.
    """
    functions = {name: _without_moves(fn) for name, fn in program.functions.items()}
    return dataclasses.replace(program, functions=functions)


def _without_moves(fn: Function) -> Function:
    products = {number for number, op in enumerate(fn.ops) if op.op == EXPERT_MATMUL_OP}
    if not products:
        return fn
    flow = Dataflow(fn, True)
    selected = _behind_selection(fn, flow)
    inside = _before(fn, flow, products, selected) | _behind(fn, flow, products, selected)
    for number in sorted(selected - inside, reverse=True):  # what the inside alone reads
        readers = {r for v in fn.ops[number].outputs for r in flow.readers.get(flow.source[v], ())}
        if readers and readers <= inside and _moves(fn.ops[number]):
            inside.add(number)
    ops = tuple(op.without_work() if number in inside else op for number, op in enumerate(fn.ops))
    return dataclasses.replace(fn, ops=ops)


def _makers(flow: Dataflow, number: int) -> set[int]:
    return {flow.maker[value] for value in flow.reads[number] if value in flow.maker}


def _moves(op: Op) -> bool:
    return op.kind == "compute" and op.kernel_class in _MOVING and op.op != _SELECTION


def _behind_selection(fn: Function, flow: Dataflow) -> set[int]:
    """Return the kernels that depend on a selection of experts by kernels and views alone."""
    numbers: set[int] = set()
    for number, op in enumerate(fn.ops):
        if op.op == _SELECTION or (op.kind == "compute" and numbers & _makers(flow, number)):
            numbers.add(number)
    return numbers


def _before(fn: Function, flow: Dataflow, products: set[int], selected: set[int]) -> set[int]:
    """Return the kernels that bring rows to the products."""
    moving = {number for number in selected if _moves(fn.ops[number])}
    before = reachable(products, lambda number: _makers(flow, number) & moving)
    return moving.intersection(before)


def _behind(fn: Function, flow: Dataflow, products: set[int], selected: set[int]) -> set[int]:
    """Return the kernels that read results of the products, and nothing from elsewhere."""
    numbers: set[int] = set()
    for number, op in enumerate(fn.ops):
        makers = _makers(flow, number)
        inside = makers & (products | numbers)
        if inside and number not in products and _moves(op) and makers <= selected | products:
            numbers.add(number)
    return numbers

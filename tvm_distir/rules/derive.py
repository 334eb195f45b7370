# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Rules derived from TIR: for ``call_tir`` and for ops without a hand-written rule.

A factor is a class of iteration variables and buffer dims that are cut together: moving a
variable by one block of its extent moves every index of a dim of the class by one block of that
dim, and leaves all else as it is (``tir_shift``). Union-find ties them; whatever does not move so
pins its class. Then the blocks are walked once per class: a spatial variable makes results cut,
a reduced one terms of its reduction, and terms may only pass through linear blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from tvm import ir, relax, tirx

from ..errors import PropagationError
from ..ir import flat_types, static_shape, tensor_type
from .dims import Shape, elements, expr, product, same
from .draft import CallShape, Draft
from .factor import Rule
from .tir_block import (
    Block,
    NotUnderstood,
    blocks_of,
    buffer_shape,
    count_flops,
    kind_of,
    loads,
)
from .tir_flow import States, flow
from .tir_shift import shift_of, uses

#: ("iter", block, variable) or ("dim", buffer, dim)
Node = tuple[str, int, int]

#: Judges a factor (operand dims, result dims, size): None, or why the op cannot follow it.
Accept = Callable[[dict[int, int], dict[int, int], Any], str | None]


class Classes:
    """Union-find over nodes, with the step each variable moves by and the reasons of pins."""

    def __init__(self) -> None:
        self._parent: dict[Node, Node] = {}
        self.steps: dict[Node, int] = {}
        self.pins: dict[Node, str] = {}

    def find(self, node: Node) -> Node:
        """Root of a node's class."""
        self._parent.setdefault(node, node)
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def tie(self, a: Node, b: Node) -> None:
        """Put two nodes in one class (the smaller root stays)."""
        low, high = sorted((self.find(a), self.find(b)))
        self._parent[high] = low

    def pin(self, node: Node, why: str) -> None:
        """Forbid cutting a node's class."""
        self.find(node)
        self.pins.setdefault(node, why)

    def step(self, node: Node, step: int) -> None:
        """Blocks of a variable must be multiples of a step."""
        self.find(node)
        self.steps[node] = math.lcm(self.steps.get(node, 1), step)

    def members(self) -> dict[Node, list[Node]]:
        """Classes by root, in order."""
        found: dict[Node, list[Node]] = {}
        for node in sorted(self._parent):
            found.setdefault(self.find(node), []).append(node)
        return found


class Buffers:
    """Numbers buffers by identity: operands, results, then intermediate ones."""

    def __init__(self, func: Any) -> None:
        self._found: dict[int, list[tuple[Any, int]]] = {}
        self.shapes: list[list[Any]] = []
        for param in func.params:
            if hasattr(param.ty, "shape"):
                self.number(param)
        self.params = len(self.shapes)

    def number(self, buffer: Any) -> int:
        """Number of a buffer."""
        slot = self._found.setdefault(hash(buffer), [])
        for known, number in slot:
            if known.same_as(buffer):
                return number
        slot.append((buffer, len(self.shapes)))
        self.shapes.append(buffer_shape(buffer))
        return len(self.shapes) - 1


def _contained(block: Block, e: Any, var: Any, step: int, change: int) -> bool:
    """Whether the first block of a variable keeps an index inside the first block of its dim."""
    analyzer = type(block.analyzer)()
    for other, extent in block.extents:
        span = step if other.same_as(var) else extent
        analyzer.bind(other, ir.Range(expr(0), expr(span)))
    bound = analyzer.const_int_bound(e)
    return int(bound.min_value) >= 0 and int(bound.max_value) < change


def _visit_index(
    classes: Classes, number: int, block: Block, dim: Node, extent: Any, e: Any
) -> None:
    if isinstance(extent, int) and extent == 1:
        return
    e = block.analyzer.simplify(e)
    gathered = any(True for _ in loads(e))
    tied = False
    moving: list[Node] = []
    for k, (var, own) in enumerate(block.extents):
        if not uses(e, var):
            continue
        node: Node = ("iter", number, k)
        shift = shift_of(e, var)
        if shift is None:
            classes.pin(node, "it is indexed in a way that is not understood")
            continue
        step, change = shift
        symbolic = not isinstance(own, int)
        if symbolic and step != 1:
            classes.pin(node, "its symbolic extent is split")
        elif change == 0:
            classes.step(node, step)
        elif (
            not tied
            and not gathered
            and change > 0
            and same(product((change, own)), product((extent, step)))
            and _contained(block, e, var, step, change)
        ):
            tied = True
            classes.step(node, step)
            classes.tie(node, dim)
        else:
            moving.append(node)
    for node in moving:
        classes.pin(node, "a block of it reaches into other blocks")
    if not tied:
        classes.pin(dim, "it is indexed by values" if gathered else "blocks of it are not aligned")


def _visit_value(classes: Classes, number: int, block: Block, e: Any) -> None:
    """Variables whose position enters a value or condition cannot be cut."""
    for k, (var, _) in enumerate(block.extents):
        if uses(e, var):
            shift = shift_of(e, var)
            if shift is None or shift[1] != 0:
                classes.pin(("iter", number, k), "its position enters the values")
            else:
                classes.step(("iter", number, k), shift[0])


def _visit(classes: Classes, buffers: Buffers, number: int, block: Block) -> None:
    for k, (_, _) in enumerate(block.extents):
        classes.find(("iter", number, k))
        if block.reduced[k] and not block.combiner:
            classes.pin(("iter", number, k), "it is reduced in a way that is not understood")
    for store in block.stores:
        exprs = [store.value, *store.conditions]
        accesses = [(store.buffer, store.indices)]
        accesses += [
            (x.source, list(x.indices)) for e in (*exprs, *store.indices) for x in loads(e)
        ]
        for buffer, indices in accesses:
            place = buffers.number(buffer)
            for d, e in enumerate(indices):
                _visit_index(classes, number, block, ("dim", place, d), buffers.shapes[place][d], e)
        for e in exprs:
            _visit_value(classes, number, block, e)


def _size(classes: Classes, blocks: list[Block], nodes: list[Node]) -> tuple[Any, bool] | None:
    """(blocks at most, one to one) of a class; None when extents cannot be reconciled."""
    size: Any = None
    aligned = True
    for kind, number, k in nodes:
        if kind != "iter":
            continue
        extent = blocks[number].extents[k][1]
        step = classes.steps.get((kind, number, k), 1)
        aligned = aligned and step == 1
        if isinstance(extent, int):
            if extent % step:
                return None
            extent //= step
        if size is None:
            size = extent
        elif isinstance(size, int) and isinstance(extent, int):
            aligned = aligned and size == extent
            size = math.gcd(size, extent)
        elif not same(size, extent):
            return None
    return None if size is None else (size, aligned)


def _add_factor(
    draft: Draft,
    classes: Classes,
    buffers: Buffers,
    blocks: list[Block],
    nodes: list[Node],
    accept: Accept | None,
) -> str | None:
    """Add the factor of a class, or return why its dims must be whole."""
    pinned = [classes.pins[n] for n in nodes if n in classes.pins]
    if pinned:
        return pinned[0]
    inputs = len(draft.call.ins)
    dims = [(b, d) for kind, b, d in nodes if kind == "dim" and b < buffers.params]
    if len({b for b, _ in dims}) != len(dims):
        return "two dims of one tensor move together"
    found = _size(classes, blocks, nodes)
    if found is None:
        return "its extents cannot be cut into equal blocks"
    size, aligned = found
    cut = {(kind, a, b) for kind, a, b in nodes}
    states = flow(blocks, buffers.number, cut, {}, accept is not None)
    if isinstance(states, str):
        return states
    results = [states.get(b, "") for b in range(inputs, buffers.params)]
    kinds = {s for s in results if s}
    if kinds and (len(kinds) > 1 or "" in results):
        return "some results are reduced over it and others not"
    ins = {b: d for b, d in dims if b < inputs}
    outs = {b - inputs: d for b, d in dims if b >= inputs}
    if not ins and (not outs or kinds):
        return None
    if kinds and outs:
        return "it is reduced and used again"
    if accept is not None and (refusal := accept(ins, outs, size)) is not None:
        return refusal
    draft.tie(
        ins,
        outs,
        kinds.pop() if kinds else "map",
        size=size if isinstance(size, int) else None,
        uneven=aligned and not kinds and not any(s for s in results),
    )
    return None


def _linear(draft: Draft, buffers: Buffers, blocks: list[Block]) -> None:
    """Find operand groups that all results are linear in: single ones, pairs, all the rest."""
    inputs = len(draft.call.ins)
    results = range(inputs, buffers.params)

    def carries(group: tuple[int, ...]) -> bool:
        start: States = dict.fromkeys(group, "sum")
        states = flow(blocks, buffers.number, set(), start, False)
        return not isinstance(states, str) and all(states.get(b) == "sum" for b in results)

    single = [i for i in range(inputs) if carries((i,))]
    draft.linear(*((i,) for i in single))
    rest = [i for i in range(inputs) if i not in single]
    groups = list(combinations(rest, 2))
    if len(rest) > 2:
        groups.append(tuple(rest))  # type: ignore[arg-type]
    draft.linear(*(g for g in groups if carries(g)))


def _product_of_loads(block: Block) -> bool:
    term = block.term
    while term is not None and kind_of(term) == "Cast":
        term = term.value
    if term is None or block.combiner != "sum" or kind_of(term) != "Mul":
        return False
    sources = [x.source for e in (term.a, term.b) for x in list(loads(e))[:1]]
    return len(sources) == 2 and not sources[0].same_as(sources[1])


def _analyse(func: Any, shape: CallShape, accept: Accept | None) -> Draft:
    draft = Draft(shape, "derived")
    flops = count_flops(func.body)
    draft.work(flops)
    buffers = Buffers(func)
    if buffers.params != len(shape.ins) + len(shape.outs):
        draft.default_why = "the PrimFunc's buffers are not the call's operands and results"
        return draft
    try:
        blocks = list(blocks_of(func.body))
        classes = Classes()
        for number, block in enumerate(blocks):
            _visit(classes, buffers, number, block)
    except NotUnderstood as reason:
        draft.default_why = f"its TIR is not understood: it holds {reason}"
        return draft
    for nodes in classes.members().values():
        why = _add_factor(draft, classes, buffers, blocks, nodes, accept)
        for kind, b, d in nodes:
            if why is not None and kind == "dim" and b < buffers.params:
                out = b >= len(shape.ins)
                draft.whole("out" if out else "in", b - out * len(shape.ins), d, why)
    draft.default_why = "its TIR does not walk it"
    _linear(draft, buffers, blocks)
    if any(map(_product_of_loads, blocks)):
        draft.work(flops, "matmul")
    else:
        gathered = {
            buffers.number(x.source)
            for block in blocks
            for store in block.stores
            for x in loads(store.value)
            if any(True for i in x.indices for _ in loads(i))
        }
        if gathered:
            written = max(elements(s) for s in shape.outs) * 4
            sizes = draft.rule().in_bytes
            read = {i: min(sizes[i], written) for i in sorted(gathered) if i < len(sizes)}
            draft.work(flops, "gather", in_bytes=read)
    return draft


def derive_primfunc(func: Any, shape: CallShape) -> Rule:
    """Derive the rule of a ``call_tir`` from its PrimFunc.

    Anything that is not understood makes dims whole, with the reason in ``why_whole``.
    """
    return _analyse(func, shape, None).rule()


def _refuse(shape: CallShape, why: str) -> PropagationError:
    return PropagationError(
        "DIST0401",
        f"no sharding rule, and none can be derived: {why}",
        place=shape.op,
        remedy="Register a rule with register_sharding_rule.",
    )


def _alone(call: ir.Call, shapes: Sequence[Shape]) -> tuple[list[relax.Var], ir.Call]:
    """The call on fresh parameters of the given shapes, one per flattened tensor operand."""
    params: list[relax.Var] = []

    def fresh(ty: Any) -> Any:
        if isinstance(ty, relax.TupleType):
            return relax.Tuple([fresh(field) for field in ty.fields])
        tensor: Any = tensor_type(ty)
        local = relax.TensorType(list(shapes[len(params)]), tensor.dtype)
        params.append(relax.Var(f"operand{len(params)}", local))
        return params[-1]

    def holds_tensors(ty: Any) -> bool:
        if isinstance(ty, relax.TupleType):
            return len(ty.fields) > 0 and all(holds_tensors(f) for f in ty.fields)
        return tensor_type(ty) is not None

    args = [fresh(a.ty) if holds_tensors(a.ty) else a for a in call.args]
    return params, ir.Call(call.op, args, call.attrs, call.ty_args)


def _part(extent: Any, count: int) -> Any:
    return extent // count if isinstance(extent, int) else tirx.floordiv(extent, count)


def _shape_keeper(call: ir.Call, shape: CallShape) -> Accept:
    """Accept factors for which the op, on one block of its operands, gives a block of its results.

    An op whose attributes name extents (a target size, a number of repeats) does not.
    """

    def local(shapes: Sequence[Shape], dims: dict[int, int], count: int) -> list[Shape]:
        return [
            tuple(_part(n, count) if dims.get(i) == d and n != 1 else n for d, n in enumerate(s))
            for i, s in enumerate(shapes)
        ]

    def judge(ins: dict[int, int], outs: dict[int, int], size: Any) -> str | None:
        count = 2
        if isinstance(size, int):
            count = next(k for k in range(2, size + 1) if size % k == 0)
        _, alone = _alone(call, local(shape.ins, ins, count))
        try:
            got = flat_types(relax.BlockBuilder().normalize(alone).ty)
        except Exception:  # type inference refuses the block: the op cannot follow
            return "the op refuses a block of its operands"
        wanted = local(shape.outs, outs, count)
        for ty, expected in zip(got, wanted):
            found = static_shape(ty)
            if found is None or len(found) != len(expected) or not all(map(same, found, expected)):
                return "the op's attributes name its extent"
        return None

    return judge


def _legalized(call: ir.Call, shape: CallShape) -> tuple[list[relax.Var], Any]:
    """Parameters and module of the call legalized alone (DIST0401 when it cannot be)."""
    params, alone = _alone(call, shape.ins)
    try:
        value = relax.BlockBuilder().normalize(alone)
        result = relax.Var("result", value.ty)
        block = relax.BindingBlock([relax.VarBinding(result, value)])
        func = relax.Function(params, relax.SeqExpr([block], result), value.ty)
        mod = ir.IRModule({"main": func.with_attr("global_symbol", "main")})
        return params, relax.transform.LegalizeOps()(mod)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _refuse(shape, f"it cannot be legalized ({lines[-1][:120]})") from error


def derive_call(call: ir.Call, shape: CallShape) -> Rule:
    """Derive the rule of an op call from the PrimFunc it legalizes to.

    Factors whose terms the kernel processes further are left out: constants of that kernel may
    depend on the extent that is cut. So are those the op itself cannot follow on local operands.

    Raises
    ------
    PropagationError
        DIST0401 when the call cannot be legalized alone.
    """
    params, mod = _legalized(call, shape)
    kernels = [f for _, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    calls = [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, ir.Call)
    ]
    if not kernels:
        raise _refuse(shape, "it does not legalize to TIR")
    draft = Draft(shape, "derived")
    if len(kernels) > 1 or len(calls) > 1:
        draft.default_why = "the op legalizes to several kernels"
        draft.work(sum(count_flops(f.body) for f in kernels))
        return draft.rule()
    operands = list(calls[0].args[1].fields)
    if len(operands) != len(params) or not all(a.same_as(b) for a, b in zip(operands, params)):
        draft.default_why = "its kernel takes other operands than the op"
        draft.work(count_flops(kernels[0].body))
        return draft.rule()
    return _analyse(kernels[0], shape, _shape_keeper(call, shape)).rule()

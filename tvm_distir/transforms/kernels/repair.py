# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Repairs kernels before compilation: NaN, indices outside of buffers, division by zero.

TVM compiles the maximum and the minimum of floats to a selection that drops NaN, and ``!=`` to a
comparison that is false for NaN; a kernel that is given an index outside of its buffer reads, or
writes, foreign memory. Every PrimFunc is repaired in the same way: those of legalised ops, those
reduced to shards, and those written by hand.

==============================  ===========================================================
in a kernel                     becomes
==============================  ===========================================================
``max(a, b)`` of floats         ``a`` where ``a > b`` or ``a`` is NaN, else ``b``
``a != b`` of floats            true as well where either is NaN
a reduction that begins with    begins with the infinity beyond it, and so does the padding of
the lowest float                the windows that it walks: a row of infinities has infinity as its
                                maximum
a read at an index that was     zero where the index is outside
read from a buffer
a write at such an index        left out where the index is outside
a variable of bfloat16 operands widens them by their bits: TVM would read these as an integer
a division of integers by what  defined for every divisor (:mod:`.division`)
was read from a buffer
==============================  ===========================================================

Extremes of long expressions are computed in front of their statement, once each.

Inputs are refused earlier (``bind_inputs``) where their indices are outside; indices computed in
the program are masked here, on a single device as on shards, whose look-ups return zeros for the
rows that they do not hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.relax import Expr

from tvm_distir.core.rewriting import map_functions
from tvm_distir.support import IF_THEN_ELSE, Analyzer, SBlock, TensorLoad

from .division import DIVISIONS, define_division, is_integer_division
from .sharing import share, with_block_fields

_LARGEST = {
    **{kind: float(np.finfo(kind).max) for kind in ("float16", "float32", "float64")},
    "bfloat16": (2 - 2**-7) * 2.0**127,
}
"""Largest finite number by type: TVM begins the search for extremes with it."""


def _kind(value: ir.Expr) -> str:
    return str(value.ty.dtype)


def is_nan(value: Expr) -> Expr:
    """Return whether a float is NaN."""
    if isinstance(value, tirx.FloatImm):
        return tirx.const(math.isnan(float(value.value)), "bool")
    # Not all targets have the intrinsic for narrow floats.
    return tirx.isnan(value if int(value.ty.dtype.bits) > 16 else tirx.Cast("float32", value))


def repaired_extreme(node: tirx.Max | tirx.Min) -> Expr:
    """Return a maximum or minimum that keeps NaN."""
    if "float" not in _kind(node):
        return node

    def write(a: Expr, b: Expr) -> Expr:
        # Of equal operands b is given, as collectives do: the sign of a zero is theirs.
        beyond = a > b if isinstance(node, tirx.Max) else a < b
        return tirx.Select(tirx.any(beyond, is_nan(a)), a, b)

    return share((node.a, node.b), write)


def _not_equal(node: tirx.NE) -> Expr:
    if "float" not in _kind(node.a):
        return node
    return share((node.a, node.b), lambda a, b: tirx.any(tirx.NE(a, b), is_nan(a), is_nan(b)))


def _beyond(value: Expr) -> Any:
    """Return the infinity beyond the largest or the lowest float; None for other values."""
    if not isinstance(value, tirx.FloatImm):
        return None
    number = float(value.value)
    if abs(number) != _LARGEST.get(_kind(value)):
        return None
    return tirx.const(math.copysign(math.inf, number), _kind(value))


def _reads(root: Expr, computed: Set[ir.Var]) -> bool:
    """Return whether an expression reads a buffer, or a variable with a value read from it."""
    if isinstance(root, tirx.Var):
        return root in computed
    stop = tvm_ffi.VisitInterrupt(True)
    entries = [
        (TensorLoad, lambda _: stop),
        (tirx.Var, lambda v: stop if v in computed else None),
    ]
    return tvm_ffi.structural_walk(root, entries) is not None


def _is_condition(node: Expr) -> bool:
    """Return whether an expression reads one of two others, by a condition."""
    is_op = isinstance(node, ir.Call) and isinstance(node.op, ir.Op)
    return is_op and str(node.op.name) == IF_THEN_ELSE


_LONG = 400
"""Most nodes of an expression whose extremes stay inside of it."""


def _extremes(root: Expr) -> tuple[list[tirx.Bind], Expr]:
    """Return bindings of the distinct extremes of a long expression, and what is left of it.

    The repair writes both operands of an extreme twice, so that nested extremes, as in the overlap
    of boxes of non-maximum suppression, grow beyond what TVM simplifies in minutes. An expression
    stays with a condition, which guards what is read behind it, and with variables of its own.
    """
    count, bindings = 0, list[Any]()

    def visit(node: Expr) -> Any:
        nonlocal count
        count += 1
        stays = _is_condition(node) or isinstance(node, (tirx.And, tirx.Or, tirx.Let))
        return tvm_ffi.VisitInterrupt(True) if stays else None

    def bind(node: tirx.Max | tirx.Min) -> Expr:
        if "float" not in _kind(node):
            return node
        for known in bindings:
            if tvm_ffi.structural_equal(known.value, node):
                return known.var
        bindings.append(tirx.Bind(tirx.Var("extreme", _kind(node)), node))
        return bindings[-1].var

    if tvm_ffi.structural_walk(root, [(ir.Expr, visit)]) is not None or count <= _LONG:
        return [], root
    return bindings, tvm_ffi.structural_map(root, [((tirx.Max, tirx.Min), bind)])


def _bind_in_store(store: tirx.BufferStore) -> tirx.Stmt:
    bindings, value = _extremes(store.value)
    if not bindings:
        return store
    return tirx.SeqStmt([*bindings, tirx.BufferStore(store.buffer, value, store.indices)])


def _bind_in_branch(branch: tirx.IfThenElse) -> tirx.Stmt:
    bindings, condition = _extremes(branch.condition)
    if not bindings:
        return branch
    new = tirx.IfThenElse(condition, branch.then_case, branch.else_case)
    return tirx.SeqStmt([*bindings, new])


def _widened_by_bits(cast: tirx.Cast) -> Expr:
    """Write a cast of bfloat16 to float32, as TVM does itself outside of bindings."""
    if (_kind(cast), _kind(cast.value)) != ("float32", "bfloat16"):
        return cast
    bits = tirx.Cast("uint32", tirx.reinterpret("uint16", cast.value))
    return tirx.reinterpret("float32", bits << tirx.const(16, "uint32"))


def _bind(bind: tirx.Bind) -> tirx.Bind:
    return tirx.Bind(bind.var, tvm_ffi.structural_map(bind.value, (tirx.Cast, _widened_by_bits)))


class _Repair:
    """Rewriter of a PrimFunc.

    Attributes
    ----------
    computed : set of Var
        Variables that hold what was read from a buffer.
    begins : list of float
        The original initial values of the reductions that now begin with an infinity.
    """

    def __init__(self, function: tirx.PrimFunc) -> None:
        self.computed: set[ir.Var] = set()
        self.begins: list[float] = []
        self._analyzer = Analyzer()
        function = tvm_ffi.structural_map(
            function, [(tirx.BufferStore, _bind_in_store), (tirx.IfThenElse, _bind_in_branch)]
        )
        tvm_ffi.structural_walk(function.body, ((tirx.Bind, tirx.Let), self._bound), order="pre")
        self.function = tvm_ffi.structural_map(
            function,
            [
                ((tirx.Max, tirx.Min), repaired_extreme),
                (tirx.NE, _not_equal),
                (tirx.Bind, _bind),
                (DIVISIONS, self._division),
                (TensorLoad, self._load),
                (tirx.BufferStore, self._store),
                (SBlock, self._block),
            ],
        )
        if self.begins:
            self.function = tvm_ffi.structural_map(self.function, (ir.Call, self._padding))

    def _bound(self, node: tirx.Bind | tirx.Let) -> None:
        if _reads(node.value, self.computed):
            self.computed.add(node.var)

    def _division(self, node: Expr) -> Expr:
        if not is_integer_division(node) or not _reads(node.b, self.computed):
            return node
        return define_division(node)

    def _inside(self, shape: Sequence[Expr], indices: Sequence[Expr]) -> list[Expr]:
        """Return the conditions, unless always true, that keep computed indices in a buffer."""
        result: list[Expr] = []
        for index, extent in zip(indices, shape):
            if not self._is_computed(index):
                continue
            for condition in (index >= tirx.const(0, index.ty.dtype), index < extent):
                if not self._analyzer.can_prove(condition):
                    result.append(condition)
        return result

    def _is_computed(self, index: Expr) -> bool:
        return str(index.ty.dtype).startswith(("int", "uint")) and _reads(index, self.computed)

    def _load(self, load: TensorLoad) -> Expr:
        positions = [i for i, index in enumerate(load.indices) if self._is_computed(index)]
        if not self._inside(load.source.ty.shape, load.indices):
            return load

        def write(*computed: Expr) -> Expr:
            indices = list(load.indices)
            for position, index in zip(positions, computed, strict=True):
                indices[position] = index
                if isinstance(index, tirx.Var):
                    self.computed.add(index)
            read = tirx.BufferLoad(load.source, indices)
            conditions = self._inside(load.source.ty.shape, indices)
            return tirx.if_then_else(tirx.all(*conditions), read, tirx.const(0, _kind(load)))

        return share([load.indices[i] for i in positions], write)

    def _store(self, store: tirx.BufferStore) -> tirx.Stmt:
        conditions = self._inside(store.buffer.ty.shape, store.indices)
        return tirx.IfThenElse(tirx.all(*conditions), store, None) if conditions else store

    def _block(self, block: SBlock) -> SBlock:
        init = block.init
        begin = _beyond(init.value) if isinstance(init, tirx.BufferStore) else None
        if begin is None:
            return block
        self.begins.append(float(init.value.value))
        return with_block_fields(block, init=tirx.BufferStore(init.buffer, begin, init.indices))

    def _padding(self, call: ir.Call) -> Expr:
        """Return the value of a reduction's window beyond the border, given by the index only."""
        if not _is_condition(call):
            return call
        condition, inner, padding = call.args
        beyond = _beyond(padding)
        if beyond is None or float(padding.value) not in self.begins:
            return call
        if _reads(condition, self.computed):
            return call
        return tirx.if_then_else(condition, inner, beyond)


def _repair_all(mod: ir.IRModule, _: object) -> ir.IRModule:
    return map_functions(mod, lambda fn: _Repair(fn).function, tirx.PrimFunc)


repair_kernels = tvm.transform.module_pass(
    _repair_all, opt_level=0, name="tvm_distir.RepairKernels"
)
"""Pass that repairs all PrimFuncs. Level: any with TIR functions, before the build."""

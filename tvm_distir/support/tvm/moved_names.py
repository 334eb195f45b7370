# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name what TVM 0.26 and 0.27 call differently, by the names of 0.27.

The nodes of 0.26 whose fields have other names there get those of 0.27 too: ``value`` of a
constant, and ``source`` of a load and of a region of a buffer. No other file of the package names
what only one version has (``scripts/checks/tvm_names.json``); a test walks the syntax trees.
"""

from __future__ import annotations

from typing import TypeVar

from tvm import ir

HAS_GENERIC_CONST = hasattr(ir, "GenericConst")
"""Whether TVM is 0.27, which moved constants, tuples and loads from its dialects to ``tvm.ir``."""

if HAS_GENERIC_CONST:
    from tvm.ir import GenericConst as GenericConst
    from tvm.ir import StringImm as StringImm
    from tvm.ir import TensorLoad as TensorLoad
    from tvm.s_tir import SBlock as SBlock
    from tvm.s_tir import SBlockRealize as SBlockRealize
    from tvm.sym import Analyzer as Analyzer
else:
    from tvm.arith import Analyzer as Analyzer
    from tvm.relax import Constant as GenericConst
    from tvm.relax import StringImm as StringImm
    from tvm.tirx import BufferLoad as TensorLoad
    from tvm.tirx import BufferRegion
    from tvm.tirx import SBlock as SBlock
    from tvm.tirx import SBlockRealize as SBlockRealize

    GenericConst.value = property(lambda constant: constant.data)
    TensorLoad.source = property(lambda load: load.buffer)
    BufferRegion.source = property(lambda region: region.buffer)

IF_THEN_ELSE = "prim.if_then_else" if HAS_GENERIC_CONST else "tirx.if_then_else"
"""Name of the op that evaluates one of two expressions."""

_V = TypeVar("_V")

_KINDS = {"Constant": "GenericConst", "BufferLoad": "TensorLoad", "BufferRegion": "TensorRegion"}
"""Class names of nodes in 0.26, and in 0.27."""

_BIT_OPS = {"tirx.shift_right", "tirx.bitwise_and"}
"""Ops of 0.26 that are classes of nodes in 0.27."""
_BIT_CLASSES = {"RShift", "BitwiseAnd"}


def node_kind(node: object) -> str:
    """Return the class name that an IR node has in TVM 0.27, e.g. ``TensorLoad``."""
    name = type(node).__name__
    return _KINDS.get(name, name)


def visits_constants(visitor: type[_V]) -> type[_V]:
    """Let ``visit_generic_const_`` of a class of visitors or mutators be called for constants."""
    if not HAS_GENERIC_CONST:
        visitor.visit_constant_ = visitor.visit_generic_const_  # type: ignore[attr-defined]
    return visitor


def takes_bits(node: object) -> bool:
    """Return whether an expression shifts an integer to the right, or masks bits of it."""
    if isinstance(node, ir.Call) and isinstance(node.op, ir.Op):
        return str(node.op.name) in _BIT_OPS
    return type(node).__name__ in _BIT_CLASSES

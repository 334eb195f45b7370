# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write binding blocks and functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tvm import ir, relax

from .calls import typed
from .nodes import make_binding, make_var


class BlockWriter:
    """A collector of the bindings of a block, which infers the types of new values."""

    def __init__(self, builder: relax.BlockBuilder, dataflow: bool) -> None:
        self.builder = builder
        self.dataflow = dataflow
        self.bindings: list[relax.Binding] = []

    def variable(self, name: str, ty: ir.Type) -> Any:
        """Make a variable that lives in this block."""
        return (relax.DataflowVar if self.dataflow else relax.Var)(name, ty)

    def emit(self, value: ir.Expr, name: str) -> ir.Expr:
        """Bind a new value to a new variable and return it."""
        return self.add(self.builder.normalize(value), name)

    def add(self, value: ir.Expr, name: str) -> ir.Expr:
        """Bind a new value that has its type to a new variable and return it."""
        var = make_var(name, value.ty, self.dataflow)
        self.bindings.append(make_binding(var, value))
        return var

    def bind(self, var: relax.Var, value: ir.Expr) -> None:
        """Bind a value that has its type to a given variable."""
        self.bindings.append(make_binding(var, value))

    def block(self) -> relax.BindingBlock:
        """Return the finished block."""
        return (relax.DataflowBlock if self.dataflow else relax.BindingBlock)(self.bindings)

    @staticmethod
    def rewritten(
        builder: relax.BlockBuilder,
        blocks: Iterable[relax.BindingBlock],
        write: Callable[[BlockWriter, relax.Binding], None],
    ) -> list[relax.BindingBlock]:
        """Return new blocks; ``write`` writes each binding of the old ones in its new form."""
        new_blocks = []
        for block in blocks:
            writer = BlockWriter(builder, isinstance(block, relax.DataflowBlock))
            for binding in block.bindings:
                write(writer, binding)
            new_blocks.append(writer.block())
        return new_blocks


def merged_blocks(blocks: Iterable[relax.BindingBlock]) -> list[relax.BindingBlock]:
    """Leave out empty blocks and join adjacent blocks of equal kind.

    The text of a function shows neither where a block ends and the next of its kind begins
    nor a block without bindings: only so does it parse back to the same function.
    """
    merged: list[relax.BindingBlock] = []
    for block in blocks:
        if not len(block.bindings):
            continue
        kind = type(block)
        if merged and type(merged[-1]) is kind:
            merged[-1] = kind([*merged[-1].bindings, *block.bindings])
        else:
            merged.append(block)
    return merged


def with_body(
    fn: relax.Function,
    params: Sequence[relax.Var],
    blocks: Sequence[relax.BindingBlock],
    result: ir.Expr,
    is_pure: bool,
    attrs: Any = None,
) -> relax.Function:
    """Build a function of the given parts; attributes are those of ``fn`` unless given."""
    body = typed(relax.SeqExpr(merged_blocks(blocks), result), result.ty)
    return relax.Function(params, body, result.ty, is_pure, fn.attrs if attrs is None else attrs)

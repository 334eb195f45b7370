# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Let attention see the documents that are packed in a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import ir
from tvm.relax import BlockBuilder, Expr

from tvm_distir.core.ir import relax_functions
from tvm_distir.core.ir.operators import ATTENTION_OP, AttentionOptions, attention
from tvm_distir.core.rewriting import all_bindings, op_name, replaced_calls
from tvm_distir.support import ModelError

from .passes import FuseAttention, may_attend


def with_documents(mod: ir.IRModule, lengths: Sequence[int]) -> ir.IRModule:
    """Return a module whose causal attention is that of documents packed in each sequence.

    A token sees the tokens of its document up to itself: the mask is block-diagonal. Softmax
    attention becomes the op ``R.dist.attention``, whose work is that of the documents. Other ops
    are as they were: learned positions count from the beginning of the sequence.

    Parameters
    ----------
    mod : IRModule
        A forward module at level 1.
    lengths : sequence of int
        The tokens of each document, as many as a sequence together. A single length is repeated,
        and the last document is shorter where it does not divide the sequence.

    Raises
    ------
    ModelError
        DIST0355 where the lengths do not fit, or attention is not causal, or is no op.
    """
    if not lengths or any(length < 1 for length in lengths):
        raise _refused("a length is not positive", "Give the tokens of each document.")
    fused, count = FuseAttention()(mod), 0
    for gv, fn in relax_functions(fused):
        for binding in all_bindings(fn.body):
            if op_name(binding.value) == ATTENTION_OP.removeprefix("relax."):
                _documents(binding.value, AttentionOptions.of(binding.value), lengths)
                count += 1
            elif may_attend(binding):
                problem = f"the softmax {binding.var.name} in {gv.name_hint} is no known attention"
                raise _refused(problem, "Pad documents, or write it as FuseAttention matches it.")
    if not count:
        raise _refused("the model has no attention", "Remove packed.")

    def packed(builder: BlockBuilder, call: ir.Call) -> Expr:
        options = AttentionOptions.of(call)
        documents = _documents(call, options, lengths)
        keywords = vars(replace(options, documents=documents))
        return attention(*call.args, **keywords)

    return replaced_calls(fused, {ATTENTION_OP: packed})


def _documents(call: Any, options: AttentionOptions, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the documents of a sequence, as a call has it."""
    queries, keys = (int(x.ty.shape[1]) for x in call.args[:2])
    if not options.causal or queries != keys:
        problem = "attention is not causal, or its keys are of another sequence"
        raise _refused(problem, "Pad documents of such a model.")
    if len(lengths) == 1 and lengths[0] < keys:
        count, rest = divmod(keys, lengths[0])
        return (*[lengths[0]] * count, *([rest] if rest else []))
    if sum(lengths) != keys:
        problem = f"documents of {sum(lengths):,} tokens do not fill a sequence of {keys:,}"
        raise _refused(problem, f"Give lengths whose sum is {keys}, or one that is repeated.")
    return tuple(lengths)


def _refused(problem: str, remedy: str) -> ModelError:
    return ModelError("DIST0355", problem, location="packed", remedy=remedy)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Replace softmax attention by the op in a function."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tvm import ir, relax, tirx
from tvm.relax import Expr, Var, op

from tvm_distir.core.ir import known_shape
from tvm_distir.core.ir.operators import (
    UNSEEN,
    AttentionOptions,
    attention,
    nn_attention_options,
)
from tvm_distir.core.rewriting import (
    BlockWriter,
    all_bindings,
    let_out,
    op_name,
    permutation,
    scalar,
    variables,
    with_body,
)
from tvm_distir.support import lists_by_key

from .masks import Band, MaskReader
from .matching import Match, Matcher, Unmatched
from .operands import KEYS, SWAP, TURNED, VALUES, OperandWriter, equal_sizes

LOG = logging.getLogger("tvm_distir.transforms.attention.passes")
NN_ATTENTION = ("nn.attention", "nn.attention_bias")
_SEEN_AND_UNSEEN = (scalar(0.0, "float32"), scalar(UNSEEN, "float32"))


class Fuser:
    """Rewriter of a function.

    Parameters
    ----------
    name : str
    fn : Function
    masks : MaskReader, optional
        The reader of the function's masks; without one, only ``nn.attention`` is replaced.
    """

    def __init__(self, name: str, fn: relax.Function, masks: MaskReader | None = None) -> None:
        self._name, self._fn, self._masks = name, fn, masks
        bindings = all_bindings(fn.body)
        self._values = {b.var: b.value for b in bindings}
        self._readers = lists_by_key(
            (var, binding.var) for binding in bindings for var in variables(binding.value)
        )
        for var in variables(fn.body.body):
            self._readers.setdefault(var, []).append(None)
        self._writer: BlockWriter
        self._operands: OperandWriter
        self._emit: Callable[[Expr, str], Var]
        self._names = {str(var.name) for var in (*fn.params, *self._values)}

    def run(self) -> relax.Function:
        """Return the function, or the given function if nothing in it changes."""
        matches = self._matches()
        direct = {v for v, value in self._values.items() if op_name(value) in NN_ATTENTION}
        if not matches and not direct:
            return self._fn
        builder, blocks = relax.BlockBuilder(), []
        for block in self._fn.body.blocks:
            self._writer = BlockWriter(builder, isinstance(block, relax.DataflowBlock))
            self._operands = OperandWriter(self._values, self._names, self._writer)
            self._emit = self._operands.emit
            for binding in block.bindings:
                if binding.var in matches:
                    target, match = matches[binding.var]
                    self._fuse(binding.var, target, match)
                elif binding.var not in direct or not self._replace(binding.var, binding.value):
                    self._writer.bindings.append(binding)
            blocks.append(self._writer.block())
        blocks_out, result = let_out(blocks, self._fn.body.body)
        return with_body(self._fn, self._fn.params, blocks_out, result, bool(self._fn.is_pure))

    def _matches(self) -> dict[Any, tuple[str, Match]]:
        """Return the attention that replaces a value: the product, or what turns it back."""
        result: dict[Var, tuple[str, Match]] = {}
        if self._masks is None:
            return result
        matcher = Matcher(self._values, self._readers, self._masks)
        for var, value in self._values.items():
            if op_name(value) != "nn.softmax":
                continue
            try:
                match = matcher.match(var)
                _options_of(match)
                _check_types(match)
            except Unmatched as why:
                if len(known_shape(var.ty) or ()) > 3:
                    LOG.info("%s: the softmax %s stays: %s", self._name, var.name, why)
                continue
            result.update([self._target(match)])
        return result

    def _target(self, match: Match) -> tuple[Any, tuple[str, Match]]:
        """Return the value that the op's result replaces, and its layout."""
        var, layout, want = match.result, "heads first", known_shape(match.result.ty)
        if len(match.result.ty.shape) > len(SWAP):
            layout = "groups"
            if want is not None:
                batch, groups, shared, rows, width = want
                single = self._single(var, "reshape", (batch, groups * shared, rows, width))
                turned = self._turned(var, TURNED) if single is None else None
                if single is not None:
                    var, layout = single, "heads first"
                elif turned is not None:
                    flat = (batch, rows, groups * shared, width)
                    single = self._single(turned, "reshape", flat)
                    if single is not None:
                        return single, ("positions first", match)
        turned = self._turned(var, SWAP) if layout == "heads first" else None
        return (var, (layout, match)) if turned is None else (turned, ("positions first", match))

    def _turned(self, var: Var, order: list[int]) -> Any:
        """Return the only reader of a value if it permutes its dims so."""
        turned = self._single(var, "permute_dims")
        same = turned is not None and permutation(self._values[turned]) == order
        return turned if same else None

    def _single(self, var: Var, name: str, shape: tuple[Any, ...] | None = None) -> Any:
        """Return the only reader of a value if it is a call of an op, of a shape if given."""
        readers = self._readers.get(var, ())
        if len(readers) != 1 or op_name(self._values.get(readers[0])) != name:
            return None
        fits = shape is None or known_shape(readers[0].ty) == shape
        return readers[0] if fits else None

    def _fuse(self, var: Var, layout: str, match: Match) -> None:
        """Bind a value to what the op computes."""
        q = self._operands.queries(match.q)
        key, order = match.k
        if len(order) > len(SWAP):
            if order != [*range(len(order))]:
                key = self._emit(op.permute_dims(key, order), KEYS)
            key, order = self._operands.joined(key, KEYS), [0, 1, 2, 3]
        k = self._operands.shared(self._operands.ordered(key, [order[i] for i in SWAP], KEYS), KEYS)
        value = self._operands.joined(match.v, VALUES)
        v = self._operands.shared(self._operands.ordered(value, SWAP, VALUES), VALUES)
        if int(k.ty.shape[2]) != int(v.ty.shape[2]):
            k, v = (
                self._operands.ordered(key, SWAP, KEYS),
                self._operands.ordered(value, SWAP, VALUES),
            )
        more = self._bias(match, "bias")
        more += [] if match.sinks is None else [match.sinks]
        options, name = _options_of(match), "attention"
        pair = self._emit(attention(q, k, v, *more, **vars(options)), name)
        out = relax.TupleGetItem(pair, 0)
        if layout == "positions first":
            self._writer.bind(var, self._writer.builder.normalize(out))
            return
        out = op.permute_dims(self._emit(out, name), SWAP)
        if layout == "groups":
            out = op.reshape(self._emit(out, name), var.ty.shape)
        self._writer.bind(var, self._writer.builder.normalize(out))

    def _replace(self, var: Var, call: ir.Call) -> bool:
        """Bind the result of ``nn.attention`` to that of the op."""
        options, bias = nn_attention_options(call, SimpleNamespace(emit=self._emit_bias))
        if options is None:
            LOG.info("%s: nn.attention %s stays: it has a window", self._name, var.name)
            return False
        k, v = (
            self._operands.shared(call.args[1], KEYS),
            self._operands.shared(call.args[2], VALUES),
        )
        if int(k.ty.shape[2]) != int(v.ty.shape[2]):
            k, v = call.args[1:3]
        pair = self._emit(attention(call.args[0], k, v, *bias, **vars(options)), "attention")
        self._writer.bind(var, self._writer.builder.normalize(relax.TupleGetItem(pair, 0)))
        return True

    def _emit_bias(self, value: Any) -> Any:
        return self._writer.emit(value, "bias")

    def _bias(self, match: Match, name: str) -> list[Any]:
        """Return the sum of what is added to the scores, and of masks, or nothing."""
        seen: Any = None
        terms = []
        for mask, is_seen in match.masks:
            if is_seen:
                seen = mask if seen is None else self._emit(op.logical_and(mask, seen), name)
            else:
                terms.append(self._emit(op.where(mask, *_SEEN_AND_UNSEEN[::-1]), name))
        if seen is not None:
            terms.append(self._emit(op.where(seen, *_SEEN_AND_UNSEEN), name))
        heads = [int(n) for n in list(match.result.ty.shape)[1:-2]]
        total: Any = None
        for term in [*terms, *match.biases]:
            term = self._of_four_dims(term, heads, name)
            if total is None:
                total = term
                continue
            if str(term.ty.dtype) != str(total.ty.dtype):
                term, total = [self._emit(op.astype(x, "float32"), name) for x in (term, total)]
            total = self._emit(op.add(total, term), name)
        return [] if total is None else [total]

    def _of_four_dims(self, term: Any, heads: list[int], name: str) -> Any:
        """Return what is added to the scores with a single dim of heads, or of no head."""
        shape = [int(n) if isinstance(n, tirx.IntImm) else n for n in term.ty.shape]
        lead = [1] * (len(heads) + 3 - len(shape))
        batch, *groups, rows, columns = lead + shape
        if not any(n != 1 for n in groups):
            flat = [batch, 1, rows, columns]
        else:
            full = [batch, *heads, rows, columns]
            if lead or groups != heads:
                term = self._emit(op.broadcast_to(term, full), name)
            flat = [batch, math.prod(heads), rows, columns]
        if len(shape) == len(flat) and all(map(equal_sizes, shape, flat)):
            return term
        return self._emit(op.reshape(term, flat), name)


def _options_of(match: Match) -> AttentionOptions:
    """Return the attributes of the op."""
    band = match.band
    if band == Band():
        return AttentionOptions(match.scale, cap=match.cap)
    offset = band.below or 0
    window = 0 if band.above is None else offset - band.above
    return AttentionOptions(match.scale, True, window, offset, match.cap)


def _check_types(match: Match) -> None:
    """Refuse operands that the op does not take."""
    kinds = {str(x.ty.dtype) for x in [match.q, match.k[0], match.v, match.result]}
    if len(kinds) > 1:
        raise Unmatched(f"its operands are of the types {', '.join(sorted(kinds))}")
    q, (k, order), v = known_shape(match.q.ty), match.k, known_shape(match.v.ty)
    keys = known_shape(k.ty)
    if q is None or keys is None or v is None:
        if str(match.q.ty.shape[0]) != str(match.v.ty.shape[0]):
            raise Unmatched("its operands have other batches")
    elif not q[0] == keys[order[0]] == v[0]:
        raise Unmatched("its operands have other batches")
    if len(order) > len(SWAP) and (int(k.ty.shape[order[2]]) != 1 or int(match.v.ty.shape[2]) != 1):
        raise Unmatched("keys of heads that share none are in five dims")
    if math.isclose(match.scale, 0.0):
        raise Unmatched("its scale is zero")

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Match softmax attention that is written out: products, scale, mask, softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import ir
from tvm.relax import Expr, Var

from tvm_distir.core.ir import known_shape
from tvm_distir.core.rewriting import op_name, permutation

from .masks import Band, MaskReader, is_scalar

_CASTS = ("astype",)
HEADS_FIRST = (4, 5)
"""The numbers of dims of scores."""


class Unmatched(Exception):
    """The reason why a softmax is not that of attention which the op can compute."""


@dataclass
class Match:
    """Attention that is written out.

    Attributes
    ----------
    q, k, v : expression
        Operands of the products, with heads before positions; of five dims where heads share keys,
        ``(batch, key heads, heads that share, positions, width)``.
    result : Var
        The value of the second product.
    scale : float
    band : Band
        Where keys are seen.
    masks : list of (expression, bool)
        Masks of unknown content, and whether they are true where a key is seen or where not.
    biases : list of expression
        Addends of unknown content.
    cap : float
        The bound of the scores; 0: scores are not capped.
    sinks : expression
        The score of a key without a value, for each head; or None.
    """

    q: Any
    k: Any
    v: Any
    result: Var
    scale: float = 1.0
    band: Band = field(default_factory=Band)
    masks: list[tuple[Expr, bool]] = field(default_factory=list)
    biases: list[Expr] = field(default_factory=list)
    cap: float = 0.0
    sinks: Any = None


@dataclass(eq=False)
class Matcher:
    """Matcher of the softmaxes of a function."""

    _values: Mapping[Var, Expr]
    _readers: Mapping[Var, Sequence[Any]]
    _masks: MaskReader

    def match(self, var: Var) -> Match:
        """Return the attention of a softmax; it raises :class:`Unmatched` with the reason."""
        call = self._values[var]
        rank = len(known_shape(var.ty) or ())
        if rank not in HEADS_FIRST or int(call.attrs.axis) % rank != rank - 1:
            raise Unmatched("its operand has not the form (batch, heads, queries, keys)")
        scores, sinks = self._without_sinks(call.args[0])
        result = self._mixed(var, sinks is not None)
        parts = Match(None, None, self._values[result].args[1], result, sinks=sinks)
        self._scores(scores, parts)
        self._check(parts, rank)
        return parts

    def _single(self, var: Var) -> Var:
        readers = self._readers.get(var, ())
        if len(readers) != 1:
            raise Unmatched(f"{var.name} has {len(readers)} readers")
        return readers[0]

    def _without_sinks(self, expr: Expr) -> tuple[Any, Any]:
        """Return the scores, and what is concatenated to them as one more key of each head."""
        value: Any = self._values.get(expr)
        if op_name(value) == "subtract":  # the maximum of each row
            top: Any = self._values.get(value.args[1])
            if op_name(top) == "max" and top.args[0].same_as(value.args[0]):
                expr, value = value.args[0], self._values.get(value.args[0])
        if op_name(value) != "concat":
            return expr, None
        scores, *others = list(getattr(value.args[0], "fields", ()))
        rank = len(known_shape(value.ty) or ())
        axis = rank if value.attrs.axis is None else int(value.attrs.axis) % max(rank, 1)
        if axis != rank - 1 or len(others) != 1:
            raise Unmatched("its scores are joined of several parts")
        heads = tuple(int(n) for n in (known_shape(scores.ty) or ())[1:-2])
        sinks, each = others[0], (math.prod(heads),)
        while known_shape(sinks.ty) != each and self._is_view(sinks):
            sinks = self._values[sinks].args[0]
        column = (known_shape(others[0].ty) or ())[1:]
        if known_shape(sinks.ty) != each or not heads or column[:-2] != heads or column[-1] != 1:
            raise Unmatched("its scores are joined with what is no number for each head")
        return scores, sinks

    def _is_view(self, expr: Expr) -> bool:
        return op_name(self._values.get(expr)) in ("broadcast_to", "reshape", *_CASTS)

    def _mixed(self, var: Var, sinks: bool) -> Var:
        """Return the product of the weights and the values."""
        reader = self._single(var)
        cut = not sinks
        while op_name(self._values.get(reader)) in _CASTS or not cut:
            if op_name(self._values.get(reader)) not in _CASTS:
                if not self._cuts_last(self._values.get(reader)):
                    raise Unmatched("the weights of its sinks are read")
                cut = True
            var, reader = reader, self._single(reader)
        value: Any = self._values.get(reader)
        name = op_name(value)
        if name == "nn.dropout":
            raise Unmatched("its weights have a dropout")
        if name != "matmul" or not value.args[0].same_as(var):
            raise Unmatched(f"its weights are read by {name or 'what is no op'}, not by a product")
        return reader

    def _cuts_last(self, value: Any) -> bool:
        """Return whether a value is an operand without its last column."""
        if op_name(value) != "strided_slice":
            return False
        full, part = known_shape(value.args[0].ty), known_shape(value.ty)
        begins, strides = (
            [int(getattr(n, "value", n)) for n in getattr(arg, "fields", ())]
            for arg in (*value.args[2:5:2], ())[:2]
        )
        shorter = full is not None and part == (*full[:-1], full[-1] - 1)
        return shorter and not any(begins) and set(strides) <= {1}

    def _scores(self, expr: Expr, match: Match) -> None:
        """Follow the scores back to the product of queries and keys."""
        while True:
            value: Any = self._values.get(expr)
            name = op_name(value)
            if name in _CASTS:
                expr = value.args[0]
            elif (factor := self._factor(value)) is not None:
                match.scale *= factor
                expr = value.args[0]
                if op_name(self._values.get(expr)) == "tanh":
                    expr = self._capped(expr, match)
            elif name in ("where", "add") and match.cap:
                raise Unmatched("its scores are masked before they are capped")
            elif name == "where":
                expr = self._where(value, match)
            elif name == "add":
                expr = self._added(value, match)
            elif name == "matmul":
                match.q = self._unscaled(value.args[0], match)
                match.k = self._untransposed(self._unscaled(value.args[1], match))
                return
            else:
                raise Unmatched(f"its scores come from {name or 'a parameter'}")

    def _capped(self, expr: Expr, match: Match) -> Any:
        """Return the scores of ``cap tanh(scores / cap)``, of which the first factor is read."""
        if match.cap or match.scale <= 0:
            raise Unmatched("its scores are scaled behind a bound")
        match.cap = match.scale  # which stays: the loop reads the division by the cap next
        return self._values[expr].args[0]

    def _factor(self, value: Any) -> float | None:
        """Return the single number that a value is an operand times, if it is that."""
        name = op_name(value)
        if name not in ("multiply", "divide"):
            return None
        number = value.args[1]
        while isinstance(number, ir.Var) and number in self._values:
            number = self._values[number]
        while op_name(number) in _CASTS:
            number = number.args[0]
        if not is_scalar(number, math.isfinite):
            return None
        factor = float(np.asarray(number.value.numpy(), "float64").reshape(()))
        return factor if name == "multiply" else 1 / factor

    def _where(self, value: Expr, match: Match) -> Var:
        mask, first, other = value.args
        for scores, low, positive in ((first, other, True), (other, first, False)):
            if not self._masks.is_low(low):
                continue
            fact = self._masks.of(mask)
            band = fact if isinstance(fact, Band) else None
            band = band if positive or band is None else band.negated()
            if band is not None:
                match.band = match.band.common(band)
            else:
                match.masks.append((self._narrowest(mask), positive))
            return scores
        raise Unmatched("its scores are chosen by a mask without a low number")

    def _added(self, value: Any, match: Match) -> Any:
        """Return the scores of a sum of scores and a bias."""
        shape = known_shape(value.ty)
        sides = [x for x in value.args if self._leads_to_product(x) and known_shape(x.ty) == shape]
        if len(sides) != 1:
            raise Unmatched("its scores are a sum of which no term is a product")
        bias = next(x for x in value.args if not x.same_as(sides[0]))
        band = self._masks.added(bias)
        if band is not None:
            match.band = match.band.common(band)
        elif match.scale != 1.0:
            raise Unmatched("its scores are scaled behind the bias")
        else:
            match.biases.append(self._narrowest(bias))
        return sides[0]

    def _narrowest(self, expr: Expr) -> Any:
        """Return what is broadcast to the shape of the scores."""
        while op_name(self._values.get(expr)) == "broadcast_to":
            expr = self._values[expr].args[0]
        return expr

    def _leads_to_product(self, expr: Expr) -> bool:
        value: Any = self._values.get(expr) if isinstance(expr, ir.Var) else None
        while op_name(value) in ("astype", "multiply", "divide", "where", "add", "tanh"):
            position = 1 if op_name(value) == "where" else 0
            value = self._values.get(value.args[position])
        return op_name(value) == "matmul"

    def _unscaled(self, expr: Expr, match: Match) -> Var:
        """Return an operand of the first product without the scale it is multiplied by."""
        value: Any = self._values.get(expr)
        factor = self._factor(value)
        if factor is None:
            return expr
        match.scale *= factor
        return value.args[0]

    def _untransposed(self, expr: Expr) -> tuple[Var, list[int]]:
        """Return a value and the order of its dims that gives keys with positions before width."""
        rank = len(known_shape(expr.ty) or ())
        order = [*range(rank - 2), rank - 1, rank - 2]
        value: Any = self._values.get(expr)
        if op_name(value) == "permute_dims":
            axes = permutation(value)
            return value.args[0], [axes[i] for i in order]
        return expr, order

    @staticmethod
    def _check(match: Match, rank: int) -> None:
        if any(len(known_shape(x.ty) or ()) != rank for x in (match.q, match.k[0], match.v)):
            raise Unmatched("its products have operands of other ranks")
        if match.band.above is not None and match.band.below is None:
            raise Unmatched("its mask hides keys in front only")
        if match.band.above is not None and match.band.above >= (match.band.below or 0):
            raise Unmatched("its mask hides all keys")

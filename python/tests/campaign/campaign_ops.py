# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random ops on single tensors: elementwise, broadcasting, matmul, reductions, layout."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import relax
from tvm.relax import op as R

from tests.campaign.campaign_writer import Item, Writer


def unary(w: Writer) -> Item:
    """relu, negative, abs, square."""
    x = w.pick()
    name = w.one_of(["relu", "negative", "abs", "square"])
    if name == "square":
        return w.emit(R.multiply(x.var, x.var), [x], x.bound**2)
    op = R.nn.relu if name == "relu" else getattr(R, name)
    return w.emit(op(x.var), [x], x.bound)


def transcendental(w: Writer) -> Item:
    """tanh, sigmoid, gelu, silu."""
    x = w.smooth(0)
    op = w.one_of([R.tanh, R.sigmoid, R.nn.gelu, R.nn.silu])
    return w.emit(op(x.var), [x], max(1.0, x.bound), exact=False)


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b)))


def binary(w: Writer) -> Item:
    """add, subtract, multiply, maximum, minimum of tensors that broadcast."""
    x = w.pick()
    y = w.pick(lambda i: _broadcasts(x.shape, i.shape))
    name = w.one_of(["add", "subtract", "multiply", "maximum", "minimum"])
    bound = {"add": x.bound + y.bound, "subtract": x.bound + y.bound}.get(
        name, x.bound * y.bound if name == "multiply" else max(x.bound, y.bound)
    )
    a, b = (x, y) if w.chance(0.5) else (y, x)
    return w.emit(getattr(R, name)(a.var, b.var), [x, y], bound)


def with_constant(w: Writer) -> Item:
    """A scalar, a vector or a whole tensor that the module holds itself."""
    x = w.pick()
    kind = w.draw(0, 2)
    shape = () if kind == 0 or not x.shape else x.shape[-1:] if kind == 1 else x.shape
    const = w.constant(-2, 2, shape)
    if w.chance(0.5):
        return w.emit(R.add(x.var, const), [x], x.bound + 2)
    return w.emit(R.multiply(const, x.var), [x], 2 * x.bound)


def matmul(w: Writer) -> Item:
    """Every pair of ranks: vectors, matrices, batches that broadcast."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    y = w.pick(
        lambda i: (
            len(i.shape) >= 1
            and i.shape[max(0, len(i.shape) - 2)] == x.shape[-1]
            and _broadcasts(x.shape[:-2], i.shape[:-2])
        )
    )
    return w.emit(R.matmul(x.var, y.var), [x, y], x.bound * y.bound * x.shape[-1])


def linear(w: Writer) -> Item:
    """matmul with a transposed operand of its own."""
    x = w.pick(lambda i: len(i.shape) >= 2)
    y = w.pick(lambda i: len(i.shape) == 2 and i.shape[1] == x.shape[-1])
    turned = w.bind(R.permute_dims(y.var))
    return w.emit(R.matmul(x.var, turned), [x, y], x.bound * y.bound * x.shape[-1])


def reduction(w: Writer) -> Item:
    """sum, mean, max, min, prod, variance over one or several dims."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    count = 1 if w.chance(0.75) else w.draw(1, len(x.shape))
    axes = sorted(int(a) for a in w.rng.permutation(len(x.shape))[:count])
    keep = w.chance(0.5)
    terms = math.prod(x.shape[a] for a in axes)
    name = w.one_of(["sum", "sum", "mean", "max", "min", "prod", "variance"])
    if name in ("prod", "variance") and (x.bound > 4 or terms > 12):
        name = "sum"
    inputs = [a - len(x.shape) if w.chance(0.3) else a for a in axes]
    call = getattr(R, name)(x.var, inputs, keep)
    bound = x.bound
    if name == "sum":
        bound *= terms
    elif name in ("prod", "variance"):
        bound = max(1.0, bound) ** (terms if name == "prod" else 2)
    return w.emit(call, [x], bound, name not in ("mean", "variance"))


def reshape(w: Writer) -> Item:
    """Merge two dims, cut one into two, flatten, or add and drop dims of 1."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    s, kind = list(x.shape), w.draw(0, 4)
    if kind == 0 and len(s) >= 2:
        a = w.draw(0, len(s) - 2)
        call = R.reshape(x.var, [*s[:a], s[a] * s[a + 1], *s[a + 2 :]])
    elif kind == 1:
        a = w.axis(x, lambda n: n > 3 and (n % 2 == 0 or n % 3 == 0))
        part = 2 if s[a] % 2 == 0 and w.chance(0.6) else 3 if s[a] % 3 == 0 else 2
        cut = [part, s[a] // part] if w.chance(0.5) else [s[a] // part, part]
        call = R.reshape(x.var, [*s[:a], *cut, *s[a + 1 :]])
    elif kind == 2:
        call = R.flatten(x.var)
    elif kind == 3:
        call = R.expand_dims(x.var, w.draw(0, len(s)))
    else:
        call = R.squeeze(x.var, [w.axis(x, lambda n: n == 1)])
    return w.emit(call, [x], x.bound)


def permute(w: Writer) -> Item:
    """Dims in another order, or backwards along one."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    if w.chance(0.15):
        return w.emit(R.flip(x.var, w.axis(x)), [x], x.bound)
    return w.emit(
        R.permute_dims(x.var, [int(a) for a in w.rng.permutation(len(x.shape))]), [x], x.bound
    )


def widen(w: Writer) -> Item:
    """broadcast_to, tile, repeat, pad."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    kind, s = w.draw(0, 3), list(x.shape)
    if kind == 0:
        grown = [w.one_of([2, 3, 4, 8]) if n == 1 else n for n in s]
        lead = [w.one_of([2, 4])] if w.chance(0.3) or grown == s else []
        call = R.broadcast_to(x.var, lead + grown)
    elif kind == 1:
        call = R.tile(x.var, [w.draw(1, 2) for _ in s])
    elif kind == 2:
        call = R.repeat(x.var, 2, w.axis(x))
    else:
        call = R.nn.pad(x.var, [w.draw(0, 1) for _ in range(2 * len(s))])
    return w.emit(call, [x], x.bound)


def concat(w: Writer) -> Item:
    """concat or stack of two or three tensors, perhaps the same one."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    if w.chance(0.3):
        parts = [x, *(w.pick(lambda i: i.shape == x.shape) for _ in range(w.draw(0, 2)))]
        call = R.stack([p.var for p in parts], w.draw(0, len(x.shape)))
    else:
        a = w.axis(x)
        rest = (*x.shape[:a], *x.shape[a + 1 :])

        def fits(i: Item) -> bool:
            same = len(i.shape) == len(x.shape)
            return same and (*i.shape[:a], *i.shape[a + 1 :]) == rest

        parts = [x, *(w.pick(fits) for _ in range(w.draw(1, 2)))]
        call = R.concat([p.var for p in parts], a)
    return w.emit(call, parts, max(p.bound for p in parts))


def split(w: Writer) -> Item:
    """Equal or unequal parts, of which one or more are used."""
    x = w.pick(lambda i: any(n > 1 for n in i.shape))
    a = w.axis(x, lambda n: n > 1)
    n = x.shape[a]
    if w.chance(0.5):
        sections = w.one_of([k for k in (2, 3, 4) if n % k == 0])
        pieces = w.bind(R.split(x.var, sections, a))
        count = sections
    else:
        pieces, count = w.bind(R.split(x.var, [w.draw(1, n - 1)], a)), 2
    used = w.rng.permutation(count)[: w.draw(1, 2)]
    return [w.emit(relax.TupleGetItem(pieces, int(i)), [x], x.bound) for i in used][-1]


def strided_slice(w: Writer) -> Item:
    """A part of one or two dims, sometimes every other element."""
    x = w.pick(lambda i: any(n > 1 for n in i.shape))
    dims = [d for d, n in enumerate(x.shape) if n > 1]
    axes = sorted(int(d) for d in w.rng.permutation(dims)[: w.draw(1, min(2, len(dims)))])
    begin = [w.draw(0, x.shape[a] - 1) for a in axes]
    end = [w.draw(b + 1, x.shape[a]) for a, b in zip(axes, begin)]
    strides = [w.one_of([1, 1, 2]) for _ in axes]
    return w.emit(R.strided_slice(x.var, axes, begin, end, strides), [x], x.bound)


OPS: tuple[tuple[float, Callable[[Writer], Item]], ...] = (
    (3, unary),
    (1, transcendental),
    (5, binary),
    (2, with_constant),
    (6, matmul),
    (2, linear),
    (4, reduction),
    (4, reshape),
    (3, permute),
    (2, widen),
    (2, concat),
    (2, split),
    (2, strided_slice),
)
"""Weights and ops of this file."""

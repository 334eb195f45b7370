# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Random ops of networks: softmax, norms, windows, indexing, comparisons, orders, tuples, calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, relax
from tvm.relax import op as R

from tests.campaign.campaign_writer import EXACT_BOUNDS, NORM_DTYPES, Item, Skip, Writer

CALL_BOUND = 64.0
"""Largest magnitude a private function is written for."""


def softmax(w: Writer) -> Item:
    """softmax or log_softmax along any dim."""
    x = w.smooth()
    op = w.one_of([R.nn.softmax, R.nn.log_softmax])
    return w.emit(op(x.var, w.axis(x)), [x], 2 * x.bound + 4, exact=False)


def _vector(w: Writer, size: int) -> Any:
    """A value of the pool of shape ``(size,)``, or a constant of ones and twos."""
    matches = [i for i in w.pool if i.shape == (size,) and i.dtype == w.dtype and i.bound <= 4]
    if matches and w.chance(0.7):
        return w.one_of(matches).var
    return w.constant(1, 2, (size,))


def norm(w: Writer) -> Item:
    """layer_norm, rms_norm, group_norm, batch_norm; gamma and beta from the pool or constant."""
    kind = w.one_of(["layer", "layer", "rms", "group", "batch"])
    if w.dtype not in (("float32", "float64") if kind == "batch" else NORM_DTYPES):
        raise Skip  # of batch_norm, TVM's kernel gives float32 for 16-bit types
    if kind in ("layer", "rms"):
        x = w.smooth(1 if kind == "layer" else 2)  # TVM cannot compile rms_norm of a vector
        size = x.shape[-1]
        if kind == "layer":
            call = R.nn.layer_norm(x.var, _vector(w, size), _vector(w, size), [-1])
        else:
            call = R.nn.rms_norm(x.var, _vector(w, size), [-1])
        return w.emit(call, [x], 20, exact=False)
    x = w.smooth(2)
    if kind == "group" and len(x.shape) < 3:
        raise Skip
    c = x.shape[1]
    gamma, beta = _vector(w, c), _vector(w, c)
    if kind == "group":
        groups = w.one_of([g for g in (1, 2, 3, 4) if c % g == 0])
        axes = list(range(2, len(x.shape)))
        return w.emit(R.nn.group_norm(x.var, gamma, beta, groups, 1, axes), [x], 20, exact=False)
    mean = _vector(w, c)
    variance = w.constant(1, 1, (c,))
    training = w.chance(0.5)
    triple = w.bind(R.nn.batch_norm(x.var, gamma, beta, mean, variance, 1, training=training))
    bound = 20 if training else 4 * x.bound + 20
    if w.chance(0.3):
        w.emit(relax.TupleGetItem(triple, 1), [x], x.bound + 4, exact=False)
    return w.emit(relax.TupleGetItem(triple, 0), [x], bound, exact=False)


def _image(w: Writer) -> Item:
    """A value of four dims; made from a smaller one where the pool has none."""
    matches = [i for i in w.pool if len(i.shape) == 4 and i.dtype == w.dtype and i.exact]
    if matches:
        return w.one_of(matches)
    x = w.pick(lambda i: len(i.shape) in (2, 3) and i.exact)
    return w.emit(R.reshape(x.var, [1] * (4 - len(x.shape)) + list(x.shape)), [x], x.bound)


def conv2d(w: Writer) -> Item:
    """Weights of their own or computed, groups, strides, padding."""
    x = _image(w)
    c = x.shape[1]
    groups = w.one_of([1, 1, 1] + [c] * (c > 1))
    k = w.one_of([1, 1, 2, 3])
    padding = k // 2 if min(x.shape[2:]) < k or w.chance(0.5) else 0
    if min(x.shape[2:]) + 2 * padding < k:
        raise Skip
    fan = c // groups
    weight = next(
        (
            i
            for i in reversed(w.pool)
            if len(i.shape) == 4
            and i.dtype == w.dtype
            and i.bound <= 4
            and i.shape[1:] == (fan, k, k)
            and i.shape[0] % groups == 0
        ),
        None,
    )
    if weight is None:
        shape = (groups * w.one_of([1, 2, 4]), fan, k, k)
        const: Any = w.constant(-2, 2, shape)
    else:
        const = weight.var
    call = R.nn.conv2d(x.var, const, strides=w.one_of([1, 1, 2]), padding=padding, groups=groups)
    sources = [x] if weight is None else [x, weight]
    return w.emit(call, sources, x.bound * 4 * fan * k * k)


def pool2d(w: Writer) -> Item:
    """max_pool2d, avg_pool2d, adaptive_avg_pool2d."""
    x = _image(w)
    kind = w.draw(0, 2)
    if kind == 2:
        if w.dtype not in ("float32", "float64"):
            raise Skip  # TVM's kernel gives float32 for 16-bit types
        return w.emit(R.nn.adaptive_avg_pool2d(x.var, (1, 1)), [x], x.bound, exact=False)
    k = w.one_of([1, 2, 3])
    padding = w.draw(0, k // 2)
    if min(x.shape[2:]) + 2 * padding < k:
        raise Skip
    op = R.nn.max_pool2d if kind == 0 else R.nn.avg_pool2d
    call = op(x.var, (k, k), w.one_of([1, 2, k]), padding)
    return w.emit(call, [x], x.bound, exact=kind == 0)


def _indices(w: Writer, size: int, shape: tuple[int, ...]) -> Any:
    """Indices below ``size``: from the pool (parameters say their bound) or constant."""
    matches = [i for i in w.pool if i.dtype == "int32" and i.exact and 0 < i.bound < size]
    fits = [i for i in matches if not shape or i.shape == shape]
    if fits and w.chance(0.8):
        return w.one_of(fits).var
    return relax.const(w.rng.integers(0, size, shape or (w.draw(1, 6),)).astype("int32"))


def take(w: Writer) -> Item:
    """Rows by index; indices of any rank."""
    x = w.pick(lambda i: len(i.shape) >= 1)
    a = w.axis(x)
    return w.emit(R.take(x.var, _indices(w, x.shape[a], ()), a, "clip"), [x], x.bound)


def gather(w: Writer) -> Item:
    """gather_elements, or one_hot of indices."""
    if w.chance(0.3):
        index = w.pick(lambda i: i.bound <= 8, dtype="int32")
        call = R.one_hot(index.var, relax.prim_value(1.0), relax.prim_value(0.0), 8, -1)
        return w.emit(R.astype(call, w.dtype), [index], 1)
    x = w.pick(lambda i: len(i.shape) >= 1)
    a = w.axis(x)
    return w.emit(R.gather_elements(x.var, _indices(w, x.shape[a], x.shape), a), [x], x.bound)


def where(w: Writer) -> Item:
    """A comparison of exact values, then where."""
    x = w.exact()
    y = w.pick(lambda i: i.shape == x.shape and i.exact)
    op = w.one_of([R.greater, R.less, R.equal, R.less_equal])
    other = y.var if w.chance(0.6) else w.scalar(w.draw(-1, 1))
    cond = w.bind(op(x.var, other))
    z = w.pick(lambda i: i.shape == x.shape)
    return w.emit(R.where(cond, x.var, z.var), [x, y, z], max(x.bound, z.bound))


def cast(w: Writer) -> Item:
    """To another type and back, or clip."""
    x = w.exact()
    if w.chance(0.4):
        low, high = w.draw(-3, 0), w.draw(1, 4)
        call = R.clip(x.var, relax.prim_value(float(low)), relax.prim_value(float(high)))
        return w.emit(call, [x], min(x.bound, 4))
    names = ["int32", "float64", "float32"]
    names += [n for n in ("float16", "bfloat16") if x.bound < EXACT_BOUNDS[n]]
    there = w.bind(R.astype(x.var, w.one_of(names)))
    return w.emit(R.astype(there, w.dtype), [x], x.bound)


def cumsum(w: Writer) -> Item:
    """Running sums along one dim."""
    x = w.exact(1)
    a = w.axis(x)
    return w.emit(R.cumsum(x.var, a), [x], x.bound * x.shape[a])


def order(w: Writer) -> Item:
    """topk, sort, argmax, argmin: values of ties are equal, of places the first counts."""
    x = w.exact(1)
    a = w.axis(x)
    kind = w.draw(0, 2)
    if kind < 2 and w.dtype == "bfloat16":
        raise Skip  # TVM's kernels give rubbish
    if kind == 0:
        k = w.draw(1, x.shape[a])
        return w.emit(R.topk(x.var, k, a, "values"), [x], x.bound)
    if kind == 1:
        return w.emit(R.sort(x.var, a), [x], x.bound)
    place = w.one_of([R.argmax, R.argmin])
    return w.emit(R.astype(place(x.var, a), w.dtype), [x], x.shape[a])


def through_tuple(w: Writer) -> Item:
    """A value into a (nested) tuple and out again."""
    x, y = w.pick(), w.pick()
    if w.chance(0.5):
        pair = w.bind(relax.Tuple([x.var, y.var]))
        return w.emit(relax.TupleGetItem(pair, w.draw(0, 1)), [x, y], max(x.bound, y.bound))
    inner = w.bind(relax.Tuple([x.var, y.var]))
    outer = w.bind(relax.Tuple([y.var, inner]))
    again = w.bind(relax.TupleGetItem(outer, 1))
    return w.emit(relax.TupleGetItem(again, w.draw(0, 1)), [x, y], max(x.bound, y.bound))


def call(w: Writer) -> Item:
    """A call of a private function; every tensor of its result comes into the pool."""
    callee = w.one_of(w.callees)

    def argument(spec: Any) -> Any:
        if isinstance(spec, list):
            return relax.Tuple([argument(s) for s in spec])
        return w.pick(lambda i: i.shape == spec and i.exact and i.bound <= CALL_BOUND).var

    args = [argument(spec) for spec in callee.params]
    result = w.bind(ir.Call(callee.gv, args))
    items: list[Item] = []

    def unpack(value: Any, spec: Any) -> None:
        if isinstance(spec, list):
            for i, part in enumerate(spec):
                unpack(w.bind(relax.TupleGetItem(value, i)), part)
            return
        bound, exact = spec
        items.append(w.hold(value, bound, exact and bound < w.exact_bound))

    unpack(result, callee.results)
    return items[-1]


OPS: tuple[tuple[float, Callable[[Writer], Item]], ...] = (
    (1.5, softmax),
    (2, norm),
    (2, conv2d),
    (1.5, pool2d),
    (1.5, take),
    (1, gather),
    (1.5, where),
    (1, cast),
    (1, cumsum),
    (0.7, order),
    (1, through_tuple),
    (7, call),
)
"""Weights and ops of this file."""

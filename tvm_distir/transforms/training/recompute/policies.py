# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Define policies, which divide values of a function into saved and recomputed ones.

Each policy reads a function's forward bindings, the values that its backward pass reads, and its
parameters:

- ``none`` saves all values except views of values that are available anyway;
- ``selective`` recomputes values with few FLOPs per byte (Korthikanti et al. 2022, section 5): all
  but contractions, and those contractions with at most :data:`CHEAP` of the work per byte of the
  function's densest, as the products of attention have;
- ``core`` recomputes the scores of attention and all values of their size (the selective
  recomputation of the same section and of Megatron-LM): cheap contractions that write more than
  they read, and the values computed from them up to the next contraction;
- ``alternate`` saves the results of attention and of every second product with weights, and
  recomputes the rest (the selective activation checkpoint per op of torchtitan);
- ``full`` saves nothing: the backward pass runs the forward pass again (Chen et al. 2016);
- ``cut:SHARE`` saves at most that share of the bytes that ``none`` saves, and minimizes the time
  by a minimum cut (:mod:`.frontier`).

Of values that kernels of the backward pass compute again (``Frontier.operands``), each saves the
operand. ``attention`` saves what ``none`` does: softmax attention is an op then, whose gradient
computes the weights again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import ir
from tvm.relax import Expr, Var

from tvm_distir.core.ops import TENSOR_CLASSES, Work, work_of
from tvm_distir.core.plan import ALTERNATE, CORE, FULL, SELECTIVE, share_of
from tvm_distir.core.rewriting import variables
from tvm_distir.support import PropagationError
from tvm_distir.transforms.training.autodiff.saved_values import kept_and_again, kept_bytes

from .frontier import Frontier, Kept

_ATTENTION = ("attention", "attention_backward", "attention_decode")
CHEAP = 1 / 8
"""The maximum work per byte, relative to the densest contraction of a function, of what is
recomputed."""


def selective(params: Sequence[Var], frontier: Frontier) -> Kept:
    """Recompute cheap values, or fall back to ``none`` where that saves no memory."""
    kernels = frontier.times.kernels
    density = {b.var: _density(b.value, kernels) for b in frontier.forward}
    most = max((d for d in density.values() if math.isfinite(d)), default=0.0)
    choice = frontier.through(lambda b: density[b.var] <= CHEAP * most)
    plain = frontier.plain(params)
    return choice if kept_bytes(choice[0]) < kept_bytes(plain[0]) else plain


def core(params: Sequence[Var], frontier: Frontier) -> Kept:
    """Recompute the scores of attention and what follows; save the rest as ``none`` does."""
    forward, read = frontier.forward, frontier.read
    works = {binding.var: _work(binding.value, frontier.times.kernels) for binding in forward}
    most = max((_per_byte(w) for w in works.values() if w is not None), default=0.0)
    region: set[Var] = set()
    for binding in forward:
        work = works[binding.var]
        if work is None:
            continue
        if work.kernel_class in TENSOR_CLASSES:
            grows = sum(work.out_bytes) > sum(work.in_bytes)
            inside = grows and _per_byte(work) <= CHEAP * most
        else:
            inside = not region.isdisjoint(variables(binding.value))
        if inside:
            region.add(binding.var)
    _, recomputed = frontier.through(lambda binding: binding.var in region)
    recomputed_vars = {binding.var for binding in recomputed}
    outside = [var for var in read if var not in recomputed_vars]
    outside += [v for b in recomputed for v in variables(b.value) if v not in recomputed_vars]
    saved, views = kept_and_again(forward, outside, params, frontier.operands)
    recomputed_vars.update(binding.var for binding in views)
    return saved, [binding for binding in forward if binding.var in recomputed_vars]


def alternate(frontier: Frontier) -> Kept:
    """Save the results of attention, and of the first, third, ... other contraction."""
    saved, products = set(), 0
    for binding in frontier.forward:
        work = _work(binding.value, frontier.times.kernels)
        if work is None:
            is_saved = type(binding.value) is ir.Call
        elif work.kernel_class not in TENSOR_CLASSES:
            continue
        elif work.kernel_class in _ATTENTION:
            is_saved = True
        else:
            products += 1
            is_saved = products % 2 == 1
        if is_saved:
            saved.add(binding.var)
    return frontier.through(lambda binding: binding.var not in saved)


def _work(value: Expr, kernels: ir.IRModule) -> Work | None:
    """Return the work of an op, or None for calls of functions and uncounted ops."""
    if not isinstance(value, ir.Call) or isinstance(value.op, ir.GlobalVar):
        return None
    try:
        return work_of(value, kernels, value.ty)
    except PropagationError:
        return None


def _per_byte(work: Work) -> float:
    return work.flops / max(sum(work.out_bytes), 1)


def _density(value: Expr, kernels: ir.IRModule) -> float:
    """Return the FLOPs per byte of a binding, or infinity if its cost is unknown."""
    if not isinstance(value, ir.Call):
        return 0.0
    work = _work(value, kernels)
    return math.inf if work is None else _per_byte(work)


def kept_by(policy: str, params: Sequence[Var], frontier: Frontier) -> Kept:
    """Return the saved and recomputed values of a policy; ``frontier`` is that of the function."""
    share = share_of(policy)
    if policy == FULL:
        return frontier.through(lambda _: True)
    if policy == CORE:
        return core(params, frontier)
    if policy == SELECTIVE:
        return selective(params, frontier)
    if policy == ALTERNATE:
        return alternate(frontier)
    plain = frontier.plain(params)
    if share is None:
        return plain
    most = share * kept_bytes(plain[0])
    fits = [point for point in frontier.points if point.size_bytes <= most]
    best = fits[-1] if fits else frontier.points[0]
    return best.kept, best.recomputed

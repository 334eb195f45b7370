# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Place the caches of a serving step: by heads, by requests, or by positions of their pages.

A cache is data of a step, but it stays where it is between steps, as a weight does. It is known by
its consumers, ``R.dist.kv_append`` and ``R.dist.paged_attention``.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence

from tvm import ir, relax

from tvm_distir.core.ir.operators import CACHE_OPS, HEADS_DIM, POOLS_DIM, POSITIONS_DIM
from tvm_distir.core.ops import creates_cache
from tvm_distir.core.plan import MeshSpec, OpenLabels, PlanRule
from tvm_distir.core.rewriting import all_bindings, calls_op
from tvm_distir.support import PlanError, warn

from .consumers import Consumers
from .model_info import Parameter, entries

_CACHE_NDIM = 5


def cache_positions(
    mod: ir.IRModule,
    fn: relax.Function,
    parameters: Sequence[Parameter],
    consumers: Consumers | None = None,
) -> frozenset[int]:
    """Return the positions of the parameters of an entry that are caches."""
    if not has_caches(mod):
        return frozenset()
    consumers = Consumers(mod) if consumers is None else consumers
    return frozenset(
        p.position
        for p in parameters
        if p.ndim == _CACHE_NDIM
        and any(use.op in CACHE_OPS for use in consumers.uses(p.entry, fn.params[p.position]))
    )


def has_caches(mod: ir.IRModule) -> bool:
    """Return whether a module has an op on caches."""
    return calls_op(mod, CACHE_OPS)


def check_pools(cache: Parameter, mesh: MeshSpec, axis: str) -> None:
    """Refuse a cache whose pools are not divisible by the axis of the requests (DIST0234)."""
    remedy = f"Add pools={mesh.axes[axis]} to the keys of the MODEL."
    _check(cache, POOLS_DIM, mesh, axis, "pools of pages", remedy)


def check_positions(cache: Parameter, mesh: MeshSpec, axis: str) -> None:
    """Refuse a cache whose pages are not divisible by the axis of the positions (DIST0234)."""
    _check(cache, POSITIONS_DIM, mesh, axis, "positions of a page", "Choose another page=.")


def _check(
    cache: Parameter, dim: int, mesh: MeshSpec, axis: str, subject: str, remedy: str
) -> None:
    size, count = (cache.shape or (0,) * _CACHE_NDIM)[dim], mesh.axes[axis]
    if isinstance(size, int) and size % count:
        raise PlanError(
            "DIST0234",
            f"the {size} {subject} of the cache are not divisible by the mesh axis "
            f'"{axis}" ({count})',
            location=cache.location, remedy=remedy,
        )  # fmt: skip


def heads_label(cache: Parameter, count: int) -> int | None:
    """Return the dim of heads where ``count`` devices can divide it; None for a single head."""
    heads = (cache.shape or (0,) * _CACHE_NDIM)[HEADS_DIM]
    return HEADS_DIM if isinstance(heads, int) and heads > 1 and heads % count == 0 else None


def warn_of_full_caches(caches: Sequence[Parameter], strategy: str, axis: str) -> None:
    """Warn of caches that every device of an axis stores in full."""
    if caches:
        warn(
            f'{strategy} over "{axis}": each device stores {len(caches)} caches in full '
            f"({caches[0].name}, ...), whose heads the devices do not divide. data_parallel "
            "divides them by requests, context_parallel by positions.",
            stacklevel=3,
        )


def created_cache_rules(
    mod: ir.IRModule, mesh: MeshSpec, placement: OpenLabels
) -> Iterator[PlanRule]:
    """Yield the rules that divide the heads of the caches that entries create."""
    for _, fn, function in entries(mod):
        for binding in all_bindings(fn.body):
            if creates_cache(getattr(binding, "value", None)):
                name = glob.escape(str(binding.var.name))
                yield PlanRule("value", name, placement, mesh.name, function=function)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plan the cheapest redistribution steps on a mesh within a memory bound.

Steps are the collectives along mesh axes, and the *exchange*, in which every device gets exactly
the tiles of its new shard that it lacks; :mod:`.path_search` finds the cheapest sequence. So a
tensor is never gathered completely where an exchange suffices, slices come before gathers, and
reductions scatter before anything else moves.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

from tvm_distir.support import UsageError

from .costs import RingCosts, StepCosts
from .path_search import PathSearch
from .steps import KINDS, Step
from .transition import PlannerOptions, Redistribution, Transition
from .view_search import ViewSearch, ViewTransition

MAX_KNOWN = 1 << 15
"""Redistributions that a planner keeps."""


class Planner:
    """A planner of the cheapest redistribution steps, with a cache.

    Parameters
    ----------
    costs : StepCosts, optional
        The costs of steps. Without them, the bytes that a device sends are the cost
        (:class:`.costs.RingCosts`).
    memory_bound : float, optional
        No shard on the way may be larger than this times the larger end (at least 1), but for
        padding that is less than an eighth of it; None for no bound.
    memory_bytes : int, optional
        Nor larger than this, ends apart.
    kinds : sequence of str
        The steps at hand, of :data:`.steps.KINDS`.

    Raises
    ------
    UsageError
        DIST0150 for a bound below 1.
    """

    def __init__(
        self,
        costs: StepCosts | None = None,
        memory_bound: float | None = 1.0,
        memory_bytes: int | None = None,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        if memory_bound is not None and not memory_bound >= 1:
            raise UsageError(
                "DIST0150",
                f"the memory bound {memory_bound} is below 1: the source and the target would "
                "not fit",
                location="LegalizeRedistribute",
                remedy="Give 1.0 or more, or None for no bound.",
            )
        self.means = PlannerOptions(costs or RingCosts(), memory_bound, memory_bytes, tuple(kinds))
        self._cache: OrderedDict[Transition | ViewTransition, Redistribution] = OrderedDict()
        self._narrower: dict[str, Planner] = {}

    def without(self, kind: str) -> Planner:
        """Return a planner of the same options that does not use a kind of step."""
        if kind not in self._narrower:
            narrower = copy.copy(self)
            narrower.means = self.means.without(kind)
            narrower._cache, narrower._narrower = OrderedDict(), {}
            self._narrower[kind] = narrower
        return self._narrower[kind]

    def plan(
        self,
        shape: Sequence[int],
        before: Sequence[int],
        after: Sequence[int],
        mesh: Sequence[int],
        dtype: str = "float32",
        devices: Sequence[int] | None = None,
    ) -> Redistribution:
        """Return the cheapest steps between two placements of a mesh.

        Parameters
        ----------
        shape : sequence of int
            Whole shape of the tensor.
        before, after : sequence of int
            The labels per mesh axis: a dim, ``R`` or ``P``.
        mesh : sequence of int
            Sizes of the mesh axes.
        dtype : str
        devices : sequence of int, optional
            Device ids, row-major over the mesh; 0, 1, ... by default.

        Raises
        ------
        LoweringError
            DIST0509 when no sequence of the steps at hand stays within the memory bound.
        """
        sizes = tuple(int(n) for n in mesh)
        ids = tuple(devices) if devices is not None else tuple(range(math.prod(sizes)))
        key = Transition(
            tuple(int(n) for n in shape), dtype, tuple(before), tuple(after), sizes, ids
        )
        return self._known(key, lambda: PathSearch(self.means, key).run())

    def plan_views(self, request: ViewTransition) -> Redistribution:
        """Return the cheapest steps (:class:`.ViewStep`) between placements on views of a mesh.

        Raises
        ------
        LoweringError
            DIST0509 when no sequence of the steps at hand stays within the memory bound.
        """
        return self._known(request, lambda: ViewSearch(self.means, request).run())

    def _known(
        self, request: Transition | ViewTransition, search: Callable[[], Redistribution]
    ) -> Redistribution:
        """Return the plan of a request, from the cache where it is there."""
        plan = self._cache.get(request)
        if plan is None:
            plan = self._cache[request] = search()
            if len(self._cache) > MAX_KNOWN:
                self._cache.popitem(last=False)
        return plan


_DEFAULT = Planner()


def plan_steps(
    shape: Sequence[int],
    src_labels: Sequence[int],
    dst_labels: Sequence[int],
    mesh: Sequence[int],
    dtype: str = "float32",
) -> list[Step]:
    """Return the cheapest steps by bytes (see :meth:`Planner.plan`); none between equals."""
    return list(_DEFAULT.plan(shape, src_labels, dst_labels, mesh, dtype).steps)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Searches that try each candidate of a step once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tvm_distir.planning.search import driver
from tvm_distir.planning.search.modules import Source
from tvm_distir.planning.search.strategy_maker import StrategyMaker
from tvm_distir.planning.search.trials import Trials


@pytest.fixture(scope="module")
def known_trials() -> Iterator[Callable[..., Any]]:
    """Try a candidate once for each model, batch, recipe, system and limit of memory.

    Gives what tries it each time.
    """
    sources: dict[Any, Source] = {}
    results: dict[Any, Any] = {}
    try_anew, compare = Trials.of, Trials.simulated_strategy

    def source(model: Any, batch: Any, train: Any, system: Any) -> Source:
        if not callable(model):
            return Source(model, batch, train, system)
        key = model, batch, repr(train), repr(system)
        if key not in sources:
            sources[key] = Source(model, batch, train, system)
        return sources[key]

    def settings(trials: Trials) -> tuple[Any, ...]:
        rules = trials.constraints
        results.setdefault(trials.source)  # it lives as long as its results
        return trials.source, trials.limit, trials.gap, trials.in_stages, repr(rules.keep)

    def of(self: Trials, *task: Any) -> Any:
        key = (*settings(self), *task)
        if key not in results:
            results[key] = try_anew(self, *task)
        return results[key]

    def simulated_strategy(self: Trials, name: str, make: Any, mesh: Any, policy: str) -> Any:
        if not isinstance(make, StrategyMaker):
            return compare(self, name, make, mesh, policy)
        key = (*settings(self), name, repr(make), tuple(mesh.items()), policy)
        if key not in results:
            results[key] = compare(self, name, make, mesh, policy)
        return results[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "Source", source)
        patch.setattr(Trials, "of", of)
        patch.setattr(Trials, "simulated_strategy", simulated_strategy)
        yield try_anew

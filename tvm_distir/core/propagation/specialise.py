# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Decides whether calls of a private function share a specialisation or reshard arguments."""

from __future__ import annotations

from .decision import Decision, Instance, Signature
from .driver import Propagator


def specialisations(decision: Decision) -> dict[str, dict[Signature, Instance]]:
    """Return distinct specialisations per placed function, in order of first call."""
    result: dict[str, dict[Signature, Instance]] = {}
    waiting = [inst for _, inst in sorted(decision.entries.items())]
    seen: set[int] = set()
    while waiting:
        inst = waiting.pop(0)
        for _, kid in sorted(inst.kids.items()):
            if kid.number not in seen:
                seen.add(kid.number)
                result.setdefault(kid.graph.key, {}).setdefault(kid.signature(), kid)
                waiting.append(kid)
    return result


def objective(solver: Propagator, decision: Decision) -> int:
    """Return the cost over all axes, and of every specialisation beyond a function's first."""
    extra = sum(len(s) - 1 for s in specialisations(decision).values())
    return solver.price(decision).total + solver.costs.clone * extra


def shared(solver: Propagator, decision: Decision) -> Decision:
    """Return the decision, or a cheaper decision whose calls share specialisations.

    While specialising costs something (``Costs.clone``), each function with several signatures
    is tried with each of them forced on all its calls, callees first; the cheapest stays.
    """
    if not solver.costs.clone:
        return decision
    best = objective(solver, decision)
    for key in solver.module.order:
        signatures = list(specialisations(decision).get(key, {}))
        if solver.module.graphs[key].public or len(signatures) < 2:
            continue
        forced = dict(solver.forced)
        winner: Signature | None = None
        for signature in signatures:
            solver.force({**forced, key: signature})
            price = objective(solver, solver.run())
            if price < best:
                best, winner = price, signature
        solver.force(forced if winner is None else {**forced, key: winner})
        decision = solver.run()
    return decision

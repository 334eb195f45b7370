# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Propagation against Shardy, as it lies in the jaxlib wheel, on the same transformers.

Ours: PropagateSharding (deciding plus rewriting), of it the deciding; then the passes to each
device's program. Shardy's: its propagation pipeline, then its passes to local shapes with
collectives. dp 2 x tp 4, Megatron's weights, batch over dp; a training step has gradients and
updated weights. "nested": a private function per layer, of whose calls our gradients are calls;
Shardy deduplicates functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import models
import tvm
from measure import cpu_seconds, interleaved, ms, parser, print_setting, ratio, table
from peers import JaxPeer
from tvm import ir

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.propagation.decide import propagate

LAYERS = (1, 8, 32)
LOWER = tvm.transform.Sequential(
    [
        transform.LegalizeRedistribute(),
        transform.OptimizeCollectives(),
        transform.LowerDistIR(),
    ]
)


def forward(layers: int, nested: bool) -> tuple[ir.IRModule, Plan]:
    """GPT layers, and Megatron's plan for them."""
    mod = models.stack(layers, nested)
    return mod, models.plan_for(mod)


def train(layers: int, nested: bool) -> tuple[ir.IRModule, Plan]:
    """A training step, and Megatron's plan for it."""
    return models.training(*forward(layers, nested))


def measures(mod: ir.IRModule, plan: Plan) -> list[Callable[[], float]]:
    """Return the measures of deciding, of the whole propagation, and of what follows it."""
    annotated = td.transforms.AnnotateSharding(plan)(mod)
    run = td.transforms.PropagateSharding()
    distributed = run(annotated)
    return [
        lambda: cpu_seconds(lambda: propagate(annotated)),
        lambda: cpu_seconds(lambda: run(annotated)),
        lambda: cpu_seconds(lambda: LOWER(distributed)),
    ]


class Shardy:
    """Times of one model; a round gives both stages, each is a measure of its own."""

    def __init__(self, peer: JaxPeer, **question: Any) -> None:
        self.peer, self.question = peer, question
        self.last: dict[str, Any] = {}

    def both(self) -> float:
        """Run both stages and return their sum."""
        self.last = self.peer.ask("shardy", **self.question)
        return float(self.last["propagate_s"] + self.last["partition_s"])

    def propagation(self) -> float:
        """Return the first stage of the run before."""
        return float(self.last["propagate_s"])


def main() -> None:
    """Print one table."""
    arguments = parser(__doc__, jax=True).parse_args()
    rows = []
    with JaxPeer(arguments.jax_python) as peer:
        print_setting(**peer.versions)
        for name, build in (("gpt", forward), ("train", train)):
            for nested in (False, True):
                for layers in LAYERS:
                    mod, plan = build(layers, nested)
                    shardy = Shardy(peer, model=name, layers=layers, nested=nested, dedup=nested)
                    decide, whole, lower, both, first = interleaved(
                        [*measures(mod, plan), shardy.both, shardy.propagation], arguments.repeat
                    )
                    rows.append(
                        [
                            f"{name}, {'nested' if nested else 'flat'}, {layers}",
                            f"{models.binding_count(mod):,}",
                            f"{shardy.last['ops']:,}",
                            ms(decide),
                            ms(whole),
                            ms(whole + lower),
                            ms(first),
                            ms(both),
                            ratio(both, whole),
                            ratio(both, whole + lower),
                        ]
                    )
    table(
        [
            "model, layers",
            "our bindings",
            "its ops",
            "ours: decide, ms",
            "decide + rewrite",
            "+ lower",
            "Shardy: propagate",
            "+ partition",
            "ratio",
            "ratio with lowering",
        ],
        rows,
    )


if __name__ == "__main__":
    main()

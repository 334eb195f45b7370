# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Bytes that a device sends against XLA:CPU, with Shardy and with GSPMD, on the same models.

dp 2 x tp 4; Megatron's weights; batch over dp. "sequence": the input of the layers is cut along
the sequence over tp, and nothing else says so. Wire bytes by the ring formulae, from the results
of the collectives in the lowered module, and in the HLO that XLA:CPU compiles.
"""

from __future__ import annotations

from collections.abc import Callable

import models
from collectives import of_module, of_peer
from measure import parser, print_setting, table
from peers import JaxPeer
from tvm import ir

import tvm_distir as td
from tvm_distir.core.plan.plan import Plan

LAYERS = (1, 2, 8)
SEQUENCE = {("param", "x"): "S[0], S[1]"}


def mlp(layers: int) -> tuple[ir.IRModule, Plan]:
    """MLPs with Megatron's plan."""
    mod = models.mlp(layers)
    return mod, models.plan_for(mod)


def gpt(layers: int) -> tuple[ir.IRModule, Plan]:
    """GPT layers with Megatron's plan."""
    mod = models.stack(layers)
    return mod, models.plan_for(mod)


def gpt_sequence(layers: int) -> tuple[ir.IRModule, Plan]:
    """The same with the input cut along the sequence."""
    mod, plan = gpt(layers)
    return mod, models.with_rules(plan, SEQUENCE)


CASES: dict[str, tuple[str, bool, Callable[[int], tuple[ir.IRModule, Plan]]]] = {
    "MLP": ("mlp", False, mlp),
    "GPT": ("gpt", False, gpt),
    "GPT training": ("train", False, lambda layers: models.training(*gpt(layers))),
    "GPT, sequence": ("gpt", True, gpt_sequence),
    "GPT training, sequence": (
        "train",
        True,
        lambda layers: models.training(*gpt_sequence(layers)),
    ),
}
"""Name: the model's name in JAX, whether its input is cut along the sequence, ours."""


def main() -> None:
    """Print a table of bytes, and one of counts."""
    options = parser(__doc__, jax=True)
    options.add_argument("--layers", type=int, nargs="+", default=list(LAYERS))
    options.add_argument("--verify", action="store_true", help="run ours and compare (slow)")
    arguments = options.parse_args()
    bytes_rows, count_rows = [], []
    with JaxPeer(arguments.jax_python) as peer:
        print_setting(**peer.versions)
        for title, (model, sequence, build) in CASES.items():
            for layers in arguments.layers:
                mod, plan = build(layers)
                ours = of_module(td.distribute(mod, plan))
                if arguments.verify:
                    td.verify(mod, plan).check()
                    print(f"{title}, {layers}: equal to the single device's result", flush=True)
                requests = {"model": model, "layers": layers, "sequence": sequence}
                shardy, gspmd = (
                    of_peer(peer, "xla", **requests, shardy=which) for which in (True, False)
                )
                best = min(shardy.wire_bytes, gspmd.wire_bytes)
                name = f"{title}, {layers}"
                bytes_rows.append(
                    [
                        name,
                        *(f"{each.wire_bytes:,}" for each in (ours, shardy, gspmd)),
                        f"{best / ours.wire_bytes:.2f}",
                    ]
                )
                count_rows.append([name, *(each.by_kind() for each in (ours, shardy, gspmd))])
    who = ["ours", "XLA:CPU, Shardy", "XLA:CPU, GSPMD"]
    table(["wire bytes per device: model, layers", *who, "best of XLA / ours"], bytes_rows)
    table(["collectives/group size: model, layers", *who], count_rows)


if __name__ == "__main__":
    main()

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Propagation against TVM's own C++ pass, then its cost in layers and in devices.

Every layer is matmul, relu, matmul, add with an annotation on its first product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from measure import cpu_seconds, interleaved, ms, parser, print_setting, ratio, table
from models import chain
from tvm import ir
from tvm.relax.distributed import transform as stock

import tvm_distir as td

LAYERS = (50, 200, 800)
PLACEMENTS = {"S[0]": "rows: one axis through all layers", "S[1]": "hidden dim: an axis per layer"}
DEEP_LAYERS = (5_000, 20_000)
DEVICES = (8, 64, 512, 4_096)
DEVICE_LAYERS = 100


def ours(mod: ir.IRModule) -> ir.IRModule:
    """Decide and rewrite with tvm_distir."""
    return td.transforms.PropagateSharding()(mod)


def theirs(mod: ir.IRModule) -> ir.IRModule:
    """Decide and rewrite with the pass of the wheel."""
    return stock.PropagateSharding()(mod)


def timed(
    run: Callable[[Any], Any], mod: ir.IRModule, results: list[Any] | None = None
) -> Callable[[], float]:
    """Return the measure of one pass on one module; ``results`` gets what the pass gives."""

    def work() -> None:
        result = run(mod)
        if results is not None:
            results[:] = [result]

    return lambda: cpu_seconds(work)


def against_stock(repeat: int, budget_s: float) -> None:
    """Print CPU times of both passes on the same modules."""
    rows = []
    for placement, label in PLACEMENTS.items():
        for layers in LAYERS:
            mod = chain(layers, placement=placement)
            expected: list[Any] = []
            matches: list[Any] = []
            measures = [timed(theirs, mod, expected), timed(ours, mod, matches)]
            stock_s, ours_s = interleaved(measures, repeat, budget_s)
            equal = tvm_ffi.structural_equal(expected[0]["main"], matches[0]["main"])
            rows.append(
                [
                    label,
                    layers,
                    ms(stock_s),
                    ms(ours_s),
                    f"{ours_s / layers * 1e6:.0f}",
                    ratio(stock_s, ours_s),
                    "yes" if equal else "no",
                ]
            )
    header = ["annotated", "layers", "stock, ms", "ours, ms", "ours, us per layer", "ratio"]
    table([*header, "same result"], rows)


def deep(repeat: int) -> None:
    """Print the cost of very deep flat modules."""
    rows = []
    for layers in DEEP_LAYERS:
        mod = chain(layers)
        (best,) = interleaved([timed(ours, mod)], min(repeat, 2))
        rows.append([f"{layers:,}", f"{best:.2f}", f"{best / layers * 1e6:.0f}"])
    table(["layers, flat", "ours, s", "ours, us per layer"], rows)


def devices(repeat: int) -> None:
    """Print the cost of one module on meshes of growing size, of one and of two axes."""
    rows = []
    for count in DEVICES:
        mods = [
            chain(DEVICE_LAYERS, rows=8192, inner=8192, mesh=mesh, placement=placement)
            for mesh, placement in (((count,), "S[0]"), ((2, count // 2), "S[0], S[1]"))
        ]
        best = interleaved([timed(ours, mod) for mod in mods], repeat)
        rows.append([f"{count:,}", *(ms(each) for each in best)])
    layers = f"{DEVICE_LAYERS} layers, ms"
    table(["devices", f"one axis, {layers}", f"two axes, {layers}"], rows)


def main() -> None:
    """Print all tables."""
    options = parser(__doc__)
    options.add_argument("--budget", type=float, default=40.0, help="seconds per row")
    arguments = options.parse_args()
    print_setting()
    against_stock(arguments.repeat, arguments.budget)
    devices(arguments.repeat)
    deep(arguments.repeat)


if __name__ == "__main__":
    main()

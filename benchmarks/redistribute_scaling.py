# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""LegalizeRedistribute on modules of many redistributes: time per redistribute.

*Chain*: one value from placement to placement on a 2 x 4 mesh, round a list of them. *Distinct*:
as many values as redistributes, each of a shape of its own, so that each is planned anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from measure import cpu_seconds, interleaved, ms, parser, print_setting, table
from tvm import ir, relax
from tvm.relax.distributed import Placement

import tvm_distir as td
from tvm_distir.core.ir.placement import placement_text
from tvm_distir.core.ir.types import as_dtensor
from tvm_distir.core.redistribution.shards import bounds_of

MESH = td.device_mesh({"dp": 2, "tp": 4})
PLACES = list(itertools.product([-1, 0, 1], repeat=2))


def _module(
    params: list[relax.Var], body: Callable[[relax.BlockBuilder], relax.Expr]
) -> ir.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(body(builder))
        builder.emit_func_output(out)
    mod = builder.get()
    mod.update_global_info("mesh", [MESH])
    return mod.with_attr("mesh_axes", [["dp", "tp"]])


def _value(name: str, shape: tuple[int, ...], labels: tuple[int, ...]) -> relax.Var:
    return relax.Var(name, as_dtensor(relax.TensorType(shape, "float32"), MESH, labels))


def _moved(x: relax.Expr, labels: tuple[int, ...]) -> relax.Expr:
    place = Placement.from_text(placement_text(labels))
    return relax.op.distributed.redistribute(x, MESH, place)


def chain(count: int) -> ir.IRModule:
    """``count`` redistributes one after the other."""
    start = _value("x", (64, 64), PLACES[0])

    def body(builder: relax.BlockBuilder) -> relax.Expr:
        x = start
        for i in range(count):
            x = builder.emit(_moved(x, PLACES[(5 * i + 1) % len(PLACES)]))
        return x

    return _module([start], body)


def distinct(count: int) -> ir.IRModule:
    """``count`` redistributes of tensors of different shapes."""
    params = [_value(f"x{i}", (8 + i, 64), PLACES[i % len(PLACES)]) for i in range(count)]

    def body(builder: relax.BlockBuilder) -> relax.Expr:
        return relax.Tuple(
            [builder.emit(_moved(x, PLACES[(i + 4) % len(PLACES)])) for i, x in enumerate(params)]
        )

    return _module(params, body)


def main() -> None:
    """Print a table."""
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=[500, 5000])
    arguments = options.parse_args()
    print_setting()
    rows = []
    for title, build in (("chain", chain), ("distinct", distinct)):
        for size in arguments.sizes:
            mod = build(size)

            def legalize(mod: ir.IRModule = mod) -> float:
                bounds_of.cache_clear()  # or a round would find what the one before it computed
                return cpu_seconds(lambda: td.transforms.LegalizeRedistribute()(mod))

            (seconds,) = interleaved([legalize], arguments.repeat)
            rows.append([title, f"{size:,}", ms(seconds), f"{1e6 * seconds / size:.0f}"])
    table(["redistributes", "count", "ms", "us each"], rows)


if __name__ == "__main__":
    main()

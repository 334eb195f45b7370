# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Answers for Shardy and XLA:CPU, in a process of its own: a JSON line in, a JSON line out.

Runs in any environment with ``jax``; a benchmark starts it (``peers.py``). Asked
``{"do": "shardy", "model": ..., "layers": ..., "nested": ..., "sequence": ..., "dedup": ...}``
it gives the CPU seconds of Shardy's propagation and partitioning; asked ``"do": "xla"``, with
``"shardy"`` true or false, the collectives of the program that XLA:CPU compiles; asked
``"do": "reshard"``, those of a change of placement; asked ``"do": "image"``, those of a program
on an image cut by rows.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import sys
import time
from typing import Any

from jax_images import lowered_image
from jax_models import AXES, Request, device_mesh, lowered

PROPAGATE = "sdy-propagation-pipeline"
DEDUPLICATE = "{dedup-functions-fully=true}"
PARTITION = (
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "sdy-resolve-permutation-factors",
    "canonicalize",
    "func.func(sdy-reshard-to-collectives)",
    "canonicalize",
    "func.func(sdy-pad-for-divisibility)",
    "sdy-convert-global-to-local",
    "canonicalize",
)
"""The steps of Shardy after propagation, to a module of local shapes with collectives."""

STEPS_ON_CALLS = PARTITION.index("sdy-convert-global-to-local")
"""How many of them a module with ``func.call`` takes: the step to local shapes leaves the types of
calls as they are, and fails."""

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
SCALAR_BYTES = 4
ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8, "s32": 4, "u32": 4, "pred": 1, "s8": 1}
COLLECTIVE = re.compile(rf" = (\(.*?\)|\S+) ({'|'.join(KINDS)})(?:-start)?\(")


@functools.lru_cache(maxsize=8)
def _module(request: Request, shardy: bool) -> Any:
    return lowered(request, device_mesh(), shardy)


@functools.lru_cache(maxsize=8)
def _text(request: Request) -> str:
    return str(_module(request, True).as_text())


def run_shardy(request: Request, dedup: bool) -> dict[str, Any]:
    """Time Shardy's passes of the jaxlib wheel once, on a freshly parsed module."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    text = _text(request)
    seconds = []
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        partition = PARTITION[:STEPS_ON_CALLS] if request.nested else PARTITION
        stages = ([PROPAGATE + (DEDUPLICATE if dedup else "")], partition)
        for passes in stages:
            manager = PassManager.parse(f"builtin.module({','.join(passes)})")
            start = time.process_time()
            manager.run(module.operation)
            seconds.append(time.process_time() - start)
    return {
        "propagate_s": seconds[0],
        "partition_s": seconds[1],
        "ops": len(re.findall(r"stablehlo\.|call @", text)),
    }


def run_xla(request: Request, shardy: bool) -> dict[str, Any]:
    """Compile with XLA:CPU and list the collectives: (kind, group size, result bytes)."""
    module = _module(request, shardy)
    start = time.perf_counter()
    compiled = module.compile()
    seconds = time.perf_counter() - start
    return {"compile_s": seconds, "collectives": _collectives(compiled.as_text())}


def run_reshard(shape: list[int], mesh: list[int], before: list[int], after: list[int]) -> Any:
    """Compile a change of placement: labels per mesh axis, -1 replicated, -2 a partial sum.

    What is partial comes as the terms of a sum, one per device along those axes. Where dims do not
    divide, which arguments and results of ``jit`` must, the value is cut inside, from a replica,
    and only its sum leaves: the scalar is not counted.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    names = [f"a{i}" for i in range(len(mesh))]
    devices = np.array(jax.devices()[: math.prod(mesh)]).reshape(mesh)
    grid = Mesh(devices, names)

    def spec(labels: list[int]) -> list[Any]:
        return [
            tuple(n for n, label in zip(names, labels) if label == d) or None
            for d in range(len(shape))
        ]

    partial = tuple(n for n, label in zip(names, before) if label == -2)
    terms = math.prod(k for k, label in zip(mesh, before) if label == -2)
    source = NamedSharding(grid, PartitionSpec(partial or None, *spec(before)))
    target = NamedSharding(grid, PartitionSpec(*spec(after)))
    if not all(_divides(shape, mesh, labels) for labels in (before, after)):
        whole = NamedSharding(grid, PartitionSpec(partial or None))
        x = jax.ShapeDtypeStruct((terms, *shape), "float32", sharding=whole)

        def inside(t: Any) -> Any:
            t = jax.lax.optimization_barrier(jax.lax.with_sharding_constraint(t, source))
            moved = t.sum(0) if partial else t[0]
            moved = jax.lax.with_sharding_constraint(moved, target)
            return jax.lax.optimization_barrier(moved).sum()

        result = _collectives(jax.jit(inside).lower(x).compile().as_text())
        return {"collectives": [each for each in result if each[2] > SCALAR_BYTES]}
    x = jax.ShapeDtypeStruct((terms, *shape), "float32", sharding=source)
    work = jax.jit(lambda t: t.sum(0) if partial else t[0], out_shardings=target)
    return {"collectives": _collectives(work.lower(x).compile().as_text())}


def _divides(shape: list[int], mesh: list[int], labels: list[int]) -> bool:
    """Whether every dim is cut into equal parts."""
    parts = [math.prod(k for k, x in zip(mesh, labels) if x == d) for d in range(len(shape))]
    return all(n % k == 0 for n, k in zip(shape, parts))


def _collectives(text: str) -> list[tuple[str, int, int]]:
    """(kind, group size, result bytes) of every collective of an HLO text."""
    matches = []
    for line in text.splitlines():
        hit = COLLECTIVE.search(line)
        if hit is not None:
            matches.append((hit[2].replace("-", "_"), _group_size(line), _bytes(hit[1])))
    return matches


def _bytes(types: str) -> int:
    total = 0
    for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", types):
        total += ITEM_BYTES[dtype] * math.prod(int(d) for d in dims.split(",") if d)
    return total


def _group_size(line: str) -> int:
    """Devices per group, in any of the forms in which HLO writes groups."""
    named = re.search(r"replica_groups=mesh\[(.*?)\].*? \{([^}]*)\}", line)
    if named:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    tiled = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", line)
    if tiled:
        return int(tiled[2])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if listed:
        return len(listed[1].split(","))
    if "source_target_pairs" in line:
        return 2
    raise ValueError(f"no groups in: {line.strip()[:200]}")


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question."""
    if question["do"] == "reshard":
        return dict(run_reshard(*(question[k] for k in ("shape", "mesh", "before", "after"))))
    if question["do"] == "image":
        names = ("shape", "layers", "ranks", "train", "shardy")
        compiled = lowered_image(*(question[k] for k in names)).compile()
        return {"collectives": _collectives(compiled.as_text())}
    keys = ("model", "layers", "nested", "sequence")
    request = Request(**{key: question[key] for key in keys if key in question})
    if question["do"] == "shardy":
        return run_shardy(request, bool(question.get("dedup")))
    return run_xla(request, bool(question.get("shardy", True)))


def versions() -> dict[str, str]:
    """Return the versions of what answers."""
    import jax
    import jaxlib

    return {"jax": jax.__version__, "jaxlib": jaxlib.__version__}


def main() -> None:
    """Answer every line of standard input on standard output; what JAX prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(versions()), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    flag = f"--xla_force_host_platform_device_count={math.prod(AXES.values())}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()

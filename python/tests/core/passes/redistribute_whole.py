# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Redistributions in modules: legalized, lowered, compiled, run by the engines."""

from __future__ import annotations

import itertools

import numpy as np
from tvm import relax

from tests.core.passes import redistribute_harness as h
from tests.transforms import transfer_cases as transfers
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.operators import ops
from tvm_distir.core.ir.placement import P, R, placement_text
from tvm_distir.core.ir.types import as_dtensor
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.execution.runtime.engines.registry import engine

ENGINES = ("virtual", "threads")
PER_MODULE = 24


def redistribute(x, mesh, labels):
    """Call ``R.dist.redistribute``."""
    from tvm.relax.distributed import Placement

    return relax.op.distributed.redistribute(x, mesh, Placement.from_text(placement_text(labels)))


def module_of(cases):
    """Level-3 module: one input and one redistributed result per case, all on one mesh."""
    mesh = h.mesh_of(cases[0].mesh, cases[0].devices)
    builder = relax.BlockBuilder()
    params = []
    for i, case in enumerate(cases):
        typed = [R if x == P else x for x in case.before]
        ty = relax.TensorType(case.shape, case.dtype)
        params.append(relax.Var(f"x{i}", as_dtensor(ty, mesh, typed)))
    with builder.function("main", params):
        with builder.dataflow():
            outs = []
            for x, case in zip(params, cases):
                axes = [a for a, label in enumerate(case.before) if label == P]
                if axes:
                    x = builder.emit(ops.partial(x, mesh, axes, case.op))
                y = builder.emit(redistribute(x, mesh, case.after))
                outs.append(builder.emit_output(y))
        builder.emit_func_output(relax.Tuple(outs))
    mod = builder.get()
    mod.update_global_info("mesh", [mesh])
    names = [[f"a{i}" for i in range(len(cases[0].mesh))]]
    return mod.with_attr("mesh_axes", names)


def modules(count):
    """Cases of every mesh and kind of sizes in turn, ``PER_MODULE`` of them in a module."""
    families = [h.UNEVEN, h.EVEN, h.RAGGED]
    turns = itertools.cycle(h.MESHES[::-1])
    for number, mesh in zip(range(count), turns):
        cases = list(h.all_cases([mesh], [families[number % 3]]))
        orders = sorted({c.devices for c in cases}, reverse=True)
        cases = [c for c in cases if c.devices == orders[number // len(h.MESHES) % len(orders)]]
        rng = np.random.default_rng(number)
        some = sorted(rng.choice(len(cases), min(PER_MODULE, len(cases)), replace=False))
        yield [cases[i] for i in some]


def lowered(mod):
    check_level(mod, 3)
    legal = LegalizeRedistribute()(mod)
    check_level(legal, 4)
    relax.analysis.well_formed(legal)
    local = LowerDistIR()(legal)
    check_level(local, 5)
    relax.analysis.well_formed(local)
    return local


def faults(cases, engines=ENGINES):
    """Run one module on engines; what is wrong."""
    rng = np.random.default_rng(len(cases))
    inputs = [h.draw(c.shape, c.dtype, rng) for c in cases]
    local = lowered(module_of(cases))
    matches = []
    for name in engines:
        results = engine(name).run(local, inputs)
        for case, x, y in zip(cases, inputs, results):
            if x.dtype != y.dtype or not np.array_equal(x, y):
                matches.append(f"{name}: {case.text()}")
    return matches


def pairs_of_meshes(count):
    """Ordered pairs of the meshes of the transfers, those that share devices first."""
    pairs = list(itertools.permutations(transfers.MESHES, 2))
    order = np.random.default_rng(3).permutation(len(pairs))
    shuffled = [pairs[i] for i in order]
    yield from sorted(shuffled, key=lambda p: not set(p[0][1]) & set(p[1][1]))[:count]


def transfer_faults(src, dst, engines=ENGINES):
    """Send tensors from a mesh to another in one module on engines; what is wrong."""
    rng = np.random.default_rng(len(src[1]) + 10 * len(dst[1]))
    cases = []
    for shape in transfers.SHAPES:
        for _ in range(PER_MODULE // len(transfers.SHAPES)):
            ends = [tuple(rng.choice([R, *range(len(shape))], len(m))) for m, _ in (src, dst)]
            cases.append((shape, *ends))
    meshes = [h.mesh_of(*side) for side in (src, dst)]
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", as_dtensor(relax.TensorType(shape, "float32"), meshes[0], before))
        for i, (shape, before, _) in enumerate(cases)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            outs = []
            for x, (_, _, after) in zip(params, cases):
                outs.append(builder.emit_output(redistribute(x, meshes[1], after)))
        builder.emit_func_output(relax.Tuple(outs))
    mod = builder.get()
    mod.update_global_info("mesh", meshes)
    names = [[f"a{i}" for i in range(len(mesh))] for mesh, _ in (src, dst)]
    local = lowered(mod.with_attr("mesh_axes", names))
    inputs = [h.draw(shape, "float32", rng) for shape, _, _ in cases]
    matches = []
    for name in engines:
        for case, x, y in zip(cases, inputs, engine(name).run(local, inputs), strict=True):
            if not np.array_equal(x, y):
                matches.append(f"{name}: {case} from {src} to {dst}")
    return matches


def check_transfers(count):
    """Run modules of transfers; (modules, cases times engines, what is wrong)."""
    pairs = list(pairs_of_meshes(count))
    wrong = [text for pair in pairs for text in transfer_faults(*pair)]
    per_module = PER_MODULE // len(transfers.SHAPES) * len(transfers.SHAPES)
    return len(pairs), len(pairs) * per_module * len(ENGINES), wrong


def prove(count):
    """Run ``count`` modules; (modules, cases times engines, what is wrong)."""
    total, wrong = 0, []
    for cases in modules(count):
        wrong += faults(cases)
        total += len(cases) * len(ENGINES)
    return count, total, wrong

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Redistributions in modules: legalized, lowered, compiled, run by the engines."""

from __future__ import annotations

import itertools

import numpy as np
import redistribute_harness as h
from tvm import relax

from tvm_distir.analysis import check_level
from tvm_distir.ir import P, R, as_dtensor, ops, placement_text
from tvm_distir.runtime import engine
from tvm_distir.transform.legalize import LegalizeRedistribute
from tvm_distir.transform.lower import LowerDistIR

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
    found = []
    for name in engines:
        results = engine(name).run(local, inputs)
        for case, x, y in zip(cases, inputs, results):
            if x.dtype != y.dtype or not np.array_equal(x, y):
                found.append(f"{name}: {case.text()}")
    return found


def prove(count):
    """Run ``count`` modules; (modules, cases times engines, what is wrong)."""
    total, wrong = 0, []
    for cases in modules(count):
        wrong += faults(cases)
        total += len(cases) * len(ENGINES)
    return count, total, wrong

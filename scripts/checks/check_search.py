#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compare search with enumeration and an integer program.

Usage: scripts/checks/check_search.py [--nets N] [--seeds N] [--plans N]
Random assignment problems against enumeration, at every sweep and at the end; problems of models
against HiGHS; whole spaces of plans against every plan in them, on prices with latency and without,
and no time below its bound; the digest of what is found, over seeds of Python's hashes; plans run
against one device. ``check_bounds.py`` checks the bounds of larger spaces.
Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import tvm_distir as td
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schema import MeshSpec
from tvm_distir.core.propagation.solve import exact
from tvm_distir.core.propagation.solve.ilp import integer_optimum
from tvm_distir.core.solver.cost_tables import Tables
from tvm_distir.core.solver.problem import INFINITE, Problem
from tvm_distir.hardware.auto_sharding.labeller import Labeller
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.driver import search

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from tests.planning.search.systems import A100, QUICK

SWEEPS = 12
ADAM = {"optimizer": "adam"}

MODELS = (
    ("gpt", {"a": 2, "b": 2}, False),
    ("llama", {"a": 2, "b": 3}, False),
    ("moe", {"a": 4}, False),
    ("resnet", {"a": 2, "b": 2}, False),
    ("vit", {"a": 2, "b": 2}, False),
    ("gpt", {"a": 4}, True),
)
"""Size "tiny", meshes, whether a training step."""

SPACES = (
    ("gpt", 8, 16, Constraints()),
    ("gpt", 4, 8, Constraints(("pp", "dp", "tp"), micro_batches=(1, 2))),
    ("llama", 6, 12, Constraints(("dp", "tp", "cp"), fixed={"cp": 1})),
    ("gpt", 6, 12, Constraints(("pp", "dp"), micro_batches=(1, 2, 3), chunks=(1, 2))),
)

RUNS = (
    ("gpt", 4, 8, ("dp", "tp")),
    ("moe", 4, 8, ("dp", "ep")),
    ("llama", 8, 8, ("dp", "tp", "cp")),
    ("gpt", 4, 8, ("pp", "dp", "tp")),
    ("llama", 4, 8, ("pp", "dp", "tp")),
    ("moe", 8, 8, ("dp", "ep", "tp")),
    ("gpt", 6, 12, ("dp", "tp")),
    ("moe", 8, 8, ("pp", "dp", "ep")),
    ("bert", 4, 8, ("dp", "tp")),
)
"""Size "tiny", devices, batch, axes."""


def random_problems(count: int) -> Iterator[tuple[Tables, Problem, int]]:
    """Nets of 3 to 8 variables, a tenth of all pairs of states forbidden, and their minimum."""
    rng = np.random.default_rng(1)
    while count:
        tables, number = Tables(), int(rng.integers(3, 9))
        domains = [int(n) for n in rng.integers(1, 5, number)]
        factors = {}
        for v in range(number):
            factors[(v,)], _ = tables.intern(rng.integers(0, 1000, domains[v]).astype(np.int64))
        for u, v in itertools.combinations(range(number), 2):
            if rng.random() < 0.55:
                table = rng.integers(0, 1000, (domains[u], domains[v])).astype(np.int64)
                table[rng.random(table.shape) < 0.1] = INFINITE
                if table.min() < INFINITE:
                    factors[u, v], _ = tables.intern(table)
        problem = Problem(domains, factors)
        prices = [tables.evaluate(problem, x) for x in itertools.product(*map(range, domains))]
        allowed = [price for price, forbidden in prices if not forbidden]
        if allowed:
            count -= 1
            yield tables, problem, min(allowed)


def nets(count: int) -> int:
    """Random problems; how many answers or bounds were wrong."""
    wrong = above = sweeps = 0
    narrow, exact.NARROW = exact.NARROW, 16  # so that bounds are needed
    for tables, problem, least in random_problems(count):
        result = exact.minimise(tables, problem, 1 << 20, "net")
        price, forbidden = tables.evaluate(problem, result.values)
        wrong += forbidden or result.gap != 0 or price != least
        dual = tables.dual(problem, 1000 * 40)
        for _ in range(SWEEPS):
            bound, best = dual.round()
            sweeps += 1
            above += bound > least or best < least
    exact.NARROW = narrow
    print(
        f"{count} random nets: {wrong} answers wrong; {above} of {sweeps} bounds above the optimum"
    )
    return wrong + above


def models() -> int:
    """Problems of models against the integer program."""
    wrong = 0
    for name, mesh, trained in MODELS:
        mod = getattr(td.zoo, name)(size="tiny")
        if trained:
            mod = td.train_step(mod, **ADAM)
        spec, system = MeshSpec("mesh0", mesh), QUICK
        labeller = Labeller(td.transforms.AnnotateSharding(Plan((spec,)))(mod), system)
        net = labeller.net("main")
        tables, problem = labeller.tables, Problem(net.domains, net.factors)
        started = time.process_time()
        optimum = integer_optimum(tables, problem)
        elapsed = time.process_time() - started
        price, forbidden = tables.evaluate(problem, optimum.values)
        result = td.auto_shard(mod, mesh, system)
        equal = not forbidden and result.cost_ps == net.constant + price and result.gap == 0.0
        wrong += not equal
        print(
            f"{name}{' adam' if trained else ''} {mesh}: {len(problem.domains)} variables, "
            f"{result.cost_ps} ps, HiGHS {net.constant + price} ps ({elapsed:.1f} s): "
            f"{'equal' if equal else 'DIFFERENT'}",
            flush=True,
        )
    return wrong


def spaces() -> int:
    """The best of whole spaces, against every plan in them."""
    wrong = 0
    for (name, devices, batch, rules), system in itertools.product(SPACES, (QUICK, A100)):

        def make(size: int, name: str = name) -> object:
            return getattr(td.zoo, name)(size="tiny", batch=size)

        inputs = {"batch": batch, "train": ADAM, "constraints": rules}
        every = search(make, devices, system, top=9999, margin=99.0, **inputs)
        result = search(make, devices, system, top=1, **inputs)
        equal = result.plans[0].row == every.plans[0].row
        above = sum(plan.row.least_s > plan.time_s for plan in every.plans)
        wrong += above + (not equal)
        print(
            f"{name} on {devices} {system.name}, axes {','.join(rules.axes)}: {len(every.plans)} "
            f"plans, best {every.plans[0].row.candidate.key}; {result.space}: "
            f"{'equal' if equal else 'DIFFERENT: ' + result.plans[0].row.candidate.key}, "
            f"{above} bounds above the time",
            flush=True,
        )
    return wrong


def executed(count: int) -> int:
    """Plans found, run on threads against one device: each once, and none that sends nothing."""
    done, sent, wrong = 0, 0, 0
    known = set()
    for name, devices, batch, axes in RUNS:

        def make(size: int, name: str = name) -> object:
            return getattr(td.zoo, name)(size="tiny", batch=size)

        rules = Constraints(axes, micro_batches=(1, 2))
        inputs = {"batch": batch, "train": ADAM, "constraints": rules}
        for result in search(make, devices, QUICK, top=99, margin=99.0, **inputs).plans:
            key = (name, json.dumps(result.plan.to_dict(), sort_keys=True))
            if done == count or key in known:
                continue
            known.add(key)
            schedule = result.plan.schedule
            model = make(batch // (schedule.micro_batches if schedule else 1))
            step = td.train_step(model, schedule=schedule, **ADAM)
            plan = td.planning.with_updates(step, result.plan)
            report = td.verify(step, plan, engine="threads")
            number = sum(each.count for each in report.collectives)
            done, sent, wrong = done + bool(number), sent + number, wrong + (not report.equal)
            message = f"{'equal' if report.equal else 'DIFFERENT'}, {number} collectives"
            print(f"  {name} {result.row.candidate.key}: {message}", flush=True)
    print(f"{done} plans run on threads, {sent} collectives: {wrong} not equal to one device")
    return wrong + (done < count)


def digest() -> str:
    """Of what a search finds."""
    name, devices, batch, rules = SPACES[1]
    system = QUICK

    def make(size: int) -> object:
        return getattr(td.zoo, name)(size="tiny", batch=size)

    result = search(make, devices, system, batch=batch, train=ADAM, constraints=rules, top=2)
    plans = [each.plan.to_dict() for each in result.plans]
    return hashlib.sha256(json.dumps([result.to_dict(), plans]).encode()).hexdigest()[:16]


def seeds(count: int) -> int:
    """The digest over seeds of Python's hashes."""
    result = set()
    for seed in range(count):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, __file__, "--digest"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        result.add(done.stdout.strip())
    print(f"digest over {count} hash seeds: {', '.join(sorted(result))}")
    return len(result) - 1


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--nets", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plans", type=int, default=24, help="that are run")
    parser.add_argument("--digest", action="store_true", help="print one digest, and no more")
    options = parser.parse_args()
    if options.digest:
        print(digest())
        return 0
    wrong = nets(options.nets) + models() + spaces()
    wrong += seeds(options.seeds) + executed(options.plans)
    print(f"{wrong} differences, {time.process_time():.0f} s of CPU without the seeds' processes")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

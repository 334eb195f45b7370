# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What the passes over collectives save: counts, bytes, and simulated times of a step.

*Completed at once* is the module that ``PropagateSharding`` would write if it summed nothing
before it reduces: every ``R.dist.partial`` taken out. dp 2 x tp 4, ResNet on dp 8.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import models
import tvm
from measure import parser, print_setting, table
from tvm import ir, relax

import tvm_distir as td
from tvm_distir.core.ir.operators.ops import dist_op_name
from tvm_distir.core.passes.annotate.passes import AnnotateSharding
from tvm_distir.core.passes.legalize.passes import LegalizeRedistribute
from tvm_distir.core.passes.lower.passes import LowerDistIR
from tvm_distir.core.passes.propagate.passes import PropagateSharding
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.rewriting.substitute import substitute
from tvm_distir.core.rewriting.writer import with_body
from tvm_distir.hardware.systems.system import System
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.strategies.model_info import (
    as_mesh_spec,
    parameter_rule,
    tensor_parameters,
)
from tvm_distir.planning.strategies.training_parts import with_updates
from tvm_distir.transforms.optimize.bucket import BucketGathers, BucketReductions
from tvm_distir.transforms.optimize.collective_schedule import ScheduleCollectives, SplitCollectives
from tvm_distir.transforms.optimize.passes import OptimizeCollectives
from tvm_distir.transforms.optimize.traffic import traffic

Case = Callable[[int], tuple[ir.IRModule, Plan]]
LARGE = models.Sizes(batch=16, seq=1024, hidden=2048, ffn=8192, heads=16)


def _gpt(layers: int, sizes: models.Sizes, rules: Any) -> tuple[ir.IRModule, Plan]:
    mod = models.stack(layers, sizes=sizes)
    return models.training(mod, models.with_rules(models.plan_for(mod), rules))


def _llama(layers: int, sizes: models.Sizes) -> tuple[ir.IRModule, Plan]:
    mod = td.zoo.llama(
        layers=layers, hidden=sizes.hidden, heads=sizes.heads, ffn=sizes.ffn, batch=sizes.batch,
        seq=sizes.seq, dtype="float32", nested=0,
    )  # fmt: skip
    step = td.train_step(mod)
    return step, make_plan(step, models.STRATEGY, models.MESH)


def _resnet(_: int, __: models.Sizes) -> tuple[ir.IRModule, Plan]:
    step = td.train_step(td.zoo.resnet(batch=16))
    return step, make_plan(step, "data_parallel", {"dp": 8})


SEQUENCE = {("param", "x"): "S[0], S[1]"}
CASES: dict[str, Callable[[int, models.Sizes], tuple[ir.IRModule, Plan]]] = {
    "GPT training": lambda n, sizes: _gpt(n, sizes, {}),
    "GPT training, sequence": lambda n, sizes: _gpt(n, sizes, SEQUENCE),
    "Llama training": _llama,
    "ResNet training": _resnet,
}


def completed_at_once(mod: ir.IRModule) -> ir.IRModule:
    """Take ``R.dist.partial`` out of the functions of a module of level 3."""
    functions = dict(mod.functions.items())
    for gv, fn in mod.functions.items():
        if not isinstance(fn, relax.Function):
            continue
        env: dict[Any, Any] = {}
        blocks = []
        for block in fn.body.blocks:
            remaining = []
            for binding in block.bindings:
                value = substitute(binding.value, env)
                if dist_op_name(value) == "partial":
                    env[binding.var] = value.args[0]
                else:
                    remaining.append(relax.VarBinding(binding.var, value))
            kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else None
            blocks.append((kind or relax.BindingBlock)(remaining))
        result = substitute(fn.body.body, env)
        functions[gv] = with_body(fn, fn.params, blocks, result, bool(fn.is_pure))
    return ir.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def sharded_training(reread: bool, ranks: int = 2) -> ir.IRModule:
    """A step of the tiny GPT with weights, gradients and states in shards: ZeRO stage 3."""
    mod = td.zoo.gpt(
        size="tiny", layers=2, hidden=32, heads=4, vocab=64, seq=32, batch=32, positions=32,
        nested=0,
    )  # fmt: skip
    step = td.train_step(mod, optimizer="adam", rate=1.0, reread=reread)
    mesh = as_mesh_spec({"dp": ranks})
    rules = [
        parameter_rule(p, mesh, {0: 0 if p.shape and p.shape[0] % ranks == 0 else -1}, False)
        for p in tensor_parameters("main", step["main"], None)
    ]
    return td.distribute(step, with_updates(step, Plan((mesh,), tuple(rules))))


def bucket_rows() -> list[list[str]]:
    """Gathers, scatters and bytes of a step in shards, without buckets and with."""
    rows = []
    for title, reread in (("gathered once", False), ("again for the backward part", True)):
        mod = sharded_training(reread)
        for size in (None, 2**13, 2**15, 25 * 2**20):
            both = mod if size is None else BucketGathers(size)(BucketReductions(size)(mod))
            result = traffic(both)
            kinds: Counter[str] = Counter()
            for kind, number in result.counts.items():
                kinds[kind.op] += number
            rows.append(
                [
                    title if size is None else f"... buckets of {size // 1024:,} KiB",
                    f"{kinds['all_gather']}",
                    f"{kinds['reduce_scatter']}",
                    f"{result.total_sent_bytes:,}",
                ]
            )
    return rows


def words(mod: ir.IRModule) -> str:
    """Counts by kind, and megabytes sent, of a module of level 4, lowered, or of level 5."""
    result = traffic(mod if "dist.io" in (mod["main"].attrs or {}) else LowerDistIR()(mod))
    counts = ", ".join(f"{n} {k.op} {k.axes}" for k, n in sorted(result.counts.items()))
    return f"{counts}: {result.total_sent_bytes / 1e6:,.2f} MB"


def times(mod: ir.IRModule, system: System) -> list[str]:
    """Simulated microseconds: blocking collectives, buckets, and both with overlap."""
    bucketed = BucketReductions()(mod)
    schedule = tvm.transform.Sequential([SplitCollectives(), ScheduleCollectives(system)])
    runs = {each: schedule(each) for each in (mod, bucketed)}
    matches = []
    for each in (mod, runs[mod], bucketed, runs[bucketed]):
        result = td.simulate(td.export(each), system, blocking=True)
        peak = result.peak_memory_bytes / 2**20
        matches.append(f"{result.time_s * 1e6:,.0f} us, {peak:,.0f} MiB")
    return matches


def linear(sizes: list[int]) -> list[list[str]]:
    """CPU milliseconds of each pass on training graphs of so many layers."""
    rows = []
    for layers in sizes:
        mod, plan = CASES["GPT training"](layers, models.SIZES)
        level3 = PropagateSharding()(AnnotateSharding(plan)(mod))
        level4 = LegalizeRedistribute()(completed_at_once(level3))
        row = [f"{layers}", f"{models.binding_count(level4):,}"]
        level5 = None
        for each in ("optimize", "lower", "bucket", "split", "schedule"):
            passes: dict[str, Any] = {
                "optimize": OptimizeCollectives,
                "lower": LowerDistIR,
                "bucket": BucketReductions,
                "split": SplitCollectives,
                "schedule": ScheduleCollectives,
            }
            run = passes[each]()
            inputs = level4 if level5 is None else level5
            start = time.process_time()
            inputs = run(inputs)
            if each != "lower":
                row.append(f"{(time.process_time() - start) * 1e3:,.0f}")
            if each == "optimize":
                level4 = inputs
            else:
                level5 = inputs
        rows.append(row)
    return rows


def main() -> None:
    """Print the tables."""
    options = parser(__doc__)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--scale", type=int, nargs="*", default=[4, 16, 64])
    arguments = options.parse_args()
    print_setting()
    system = System.load("dgx-a100")
    counts, duration = [], []
    for title, build in CASES.items():
        mod, plan = build(arguments.layers, models.SIZES)
        level3 = PropagateSharding()(AnnotateSharding(plan)(mod))
        early = LegalizeRedistribute()(completed_at_once(level3))
        given4 = LegalizeRedistribute()(level3)
        best = OptimizeCollectives()(given4)
        bucketed = BucketReductions()(LowerDistIR()(best))
        counts.append(
            [title, words(early), words(OptimizeCollectives()(early)), words(best), words(bucketed)]
        )
        large, plan = build(arguments.layers, LARGE)
        duration.append([title, *times(td.distribute(large, plan), system)])
    table(
        ["model", "completed at once", "... optimised", "as propagated, optimised", "... buckets"],
        counts,
    )
    table(["model", "blocking", "scheduled", "buckets", "buckets, scheduled"], duration)
    table(["weights", "all_gather", "reduce_scatter", "sent, bytes"], bucket_rows())
    if arguments.scale:
        table(
            ["layers", "bindings", "optimize, ms", "bucket", "split", "schedule"],
            linear(arguments.scale),
        )


if __name__ == "__main__":
    main()

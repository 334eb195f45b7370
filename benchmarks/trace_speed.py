# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""CPU seconds of simulating and tracing a GPT of 1T parameters: 64 stages, 512 micro-batches.

python benchmarks/trace_speed.py [trace.pftrace]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import tvm_distir as td
from tvm_distir.core.rewriting.collector import gc_paused
from tvm_distir.planning.strategies.composition import make_plan

SIZES = {"hidden": 25600, "layers": 128, "heads": 160, "seq": 2048, "positions": 2048, "batch": 1}


def main() -> None:
    """Measure."""
    step = td.train_step(
        td.zoo.gpt(vocab=51200, **SIZES),
        optimizer="adam",
        schedule="1f1b:stages=64,micro_batches=512",
    )
    plan = make_plan(step, "pipeline:micro_batches=512+megatron", {"pp": 64, "tp": 8})
    program = td.export(td.distribute(step, plan))
    with tempfile.TemporaryDirectory() as folder, gc_paused():
        path = Path(sys.argv[1] if len(sys.argv) > 1 else Path(folder) / "t.pftrace")
        start_s = time.process_time()
        result = td.simulate(program, "dgx-a100")
        simulated_s = time.process_time()
        result.to_perfetto(path)
        written_s = time.process_time()
        count = sum(each.start.size for lane in result.lanes for each in lane.traced().sheets())
        print(f"simulated in {simulated_s - start_s:.2f} s of CPU")
        print(
            f"written in {written_s - simulated_s:.2f} s: {count} ops of {len(result.lanes)} "
            f"ranks, {path.stat().st_size / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()

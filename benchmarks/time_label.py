#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Time automatic sharding of whole models in seconds of CPU, from the zoo to the placements.

Usage: benchmarks/time_label.py [NUMBER...]
Prints a row of a Markdown table per case; all cases without numbers, which count from 1.
"""

from __future__ import annotations

import sys
import time

import tvm_distir as td

CASES = (
    ("llama?size=8b,batch=64", [{"dp": 8, "tp": 8}], "dgx-h100", True),
    ("moe?size=mixtral-8x7b,batch=32", [{"dp": 4, "tp": 8}], "dgx-h100", True),
    ("llama?size=70b,batch=64", [{"dp": 8, "tp": 8}], "dgx-h100", True),
    ("unet?batch=8", [{"dp": 2, "tp": 4}], "dgx-a100", False),
    ("resnet?size=resnet50,batch=32", [{"dp": 2, "tp": 4}], "dgx-a100", False),
    ("bert?size=bert-large,batch=32", [{"dp": 2, "tp": 4}], "dgx-a100", False),
    ("vit?size=vit-l16,batch=32", [{"dp": 2, "tp": 4}], "dgx-a100", False),
    (
        "llama?size=8b,batch=64",
        [{"dp": 2**k, "tp": 2 ** (6 - k)} for k in range(7)],
        "dgx-h100",
        True,
    ),
)
"""Model, meshes, system, whether a step of training with Adam."""


def main() -> int:
    """Run the command."""
    print("| model | mesh | least price, largest gap | CPU s |\n|---|---|---|---|")
    for number in [int(x) for x in sys.argv[1:]] or range(1, len(CASES) + 1):
        model, meshes, name, trained = CASES[number - 1]
        system, started = td.System.load(name), time.process_time()
        mod = td.load_model(f"zoo:{model}").mod
        if trained:
            mod = td.train_step(mod, optimizer="adam")
        matches = [
            td.auto_shard(mod, mesh, system, gap=0.0 if not trained else 0.01) for mesh in meshes
        ]
        duration = time.process_time() - started
        worst = max(each.gap for each in matches)
        least = min(each.price_s for each in matches)
        mesh = meshes[0] if len(meshes) == 1 else f"all {len(meshes)} of 64"
        print(
            f"| {model}{' Adam' if trained else ''} | {mesh} | {1e3 * least:.1f} ms, "
            f"{100 * worst:.2f}% | {duration:.1f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

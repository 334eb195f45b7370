#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Trace a training step of Llama of full size on 32 ranks, and check it by rules.

Usage: scripts/checks/full_size_ranks.py [8b|70b]
Prints the CPU time and the peak memory. Needs the extra torch.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from tests.execution.checking.decoder import HINTS, LLAMA_8B, LLAMA_70B

import tvm_distir as td


def main() -> None:
    """Trace, check, and print."""
    model = LLAMA_70B if sys.argv[1:] == ["70b"] else LLAMA_8B
    ranks = td.trace_ranks(model.ranks(), model.dp * model.tp, mesh=model.mesh, sample=0)
    reference = td.trace_ranks(model.single, 1)
    traced_s = time.process_time()
    print(td.check(ranks, reference, hints=HINTS, by="rules").check())
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"{traced_s:.1f} s + {time.process_time() - traced_s:.1f} s of CPU, {peak_gb:.2f} GB")


if __name__ == "__main__":
    main()

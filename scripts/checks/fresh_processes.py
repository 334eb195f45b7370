# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Distribute one model in many fresh processes and count the distinct texts.

``python scripts/checks/fresh_processes.py 50`` runs the example of two meshes 50 times;
``python scripts/checks/fresh_processes.py 30 MODEL STRATEGY dp=2,tp=2 --batch 8`` a model. Each
process
has another hash seed. Exits 1 when two texts differ: the order of a hash table shows somewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

TWO_MESHES = f"""
import sys; sys.path.insert(0, {str(EXAMPLES)!r})
import two_meshes
import tvm_distir as td
mod = two_meshes.annotated()
print(td.transforms.PropagateSharding()(mod).script(show_meta=True))
print(two_meshes.pipeline()(mod).script(show_meta=True))
"""

MODEL = """
import sys
import tvm_distir as td
spec, strategy, mesh, batch = sys.argv[1:5]
axes = {k: int(v) for k, v in (pair.split("=") for pair in mesh.split(","))}
mod = td.load_model(spec, batch=int(batch) or None).mod
plan = td.planning.make_plan(mod, strategy, axes)
annotated = td.transforms.AnnotateSharding(plan)(mod)
print(td.transforms.PropagateSharding()(annotated).script(show_meta=True))
print(td.distribute(mod, plan).script(show_meta=True))
"""


def main() -> int:
    """Run the processes and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=int, help="how many processes")
    parser.add_argument("model", nargs="?", help="what `tvm-distir` calls MODEL")
    parser.add_argument("strategy", nargs="?", default="data_parallel+megatron")
    parser.add_argument("mesh", nargs="?", default="dp=2,tp=2")
    parser.add_argument("--batch", type=int, default=0, help="of an ONNX file, or of the zoo")
    args = parser.parse_args()
    code, arguments = TWO_MESHES, []
    if args.model:
        code, arguments = MODEL, [args.model, args.strategy, args.mesh, str(args.batch)]
    digests: dict[str, int] = {}
    for seed in range(args.runs):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        digest = hashlib.sha256(done.stdout.encode()).hexdigest()[:16]
        digests[digest] = digests.get(digest, 0) + 1
    for digest, count in sorted(digests.items()):
        print(f"{digest}  {count} of {args.runs} processes")
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())

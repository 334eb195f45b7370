# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The forum's example on TVM's own pass, once its private function is inlined.

``python scripts/upstream/forum.py``

``InlinePrivateFunctions`` writes out the two calls of the annotated ``examples/two_meshes.py``.
TVM's ``PropagateSharding``, in processes without tvm_distir, then takes the module as it was and
as it is now. Prints what came of both and exits with 1 unless the second gives, every time, the
module that tvm_distir gives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tvm
import tvm_ffi
from tvm import ir
from tvm.relax.distributed import transform

ROOT = Path(__file__).resolve().parents[2]
RUNS = 32


def outcome(name: str, mod: ir.IRModule) -> str:
    """Return the text of what one of TVM's passes gives, or of its error."""
    try:
        return getattr(transform, name)()(mod).script()
    except Exception as error:
        return f"error: {str(error).strip().splitlines()[-1]}"


def stock(path: str) -> None:
    """Run TVM's pass on a text many times; print all that came of it, and of the pass after it."""
    text = Path(path).read_text(encoding="utf-8")
    matches = [outcome("PropagateSharding", tvm.script.from_source(text)) for _ in range(RUNS)]
    behind = ""
    if not matches[0].startswith("error: "):
        behind = outcome("LegalizeRedistribute", tvm.script.from_source(matches[0]))
    print(json.dumps({"found": sorted(set(matches)), "behind": behind}))


def ask_stock(mod: ir.IRModule) -> tuple[list[str], str]:
    """Return what :func:`stock` says of a module, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.py"
        path.write_text(mod.script(), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, __file__, str(path)],
            env={**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
    message = json.loads(done.stdout)
    return message["found"], message["behind"]


def main() -> int:
    """Inline, ask TVM's pass, compare."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    import two_meshes

    import tvm_distir as td

    nested = two_meshes.annotated()
    flat = td.transforms.InlinePrivateFunctions()(nested)
    ours = td.transforms.PropagateSharding()(flat)
    (refused, *more), _ = ask_stock(nested)
    print("TVM's PropagateSharding, calls of a private function:", refused, *more, sep="\n")
    (inputs, *more), behind = ask_stock(flat)
    print(f"\nInlined, {RUNS} runs:", inputs, *more, sep="\n")
    if more or inputs.startswith("error: "):
        return 1
    equal = tvm_ffi.structural_equal(
        tvm.script.from_source(inputs), tvm.script.from_source(ours.script())
    )
    print("\nstructurally equal to what tvm_distir gives:", equal)
    print("TVM's LegalizeRedistribute on that:", behind)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(stock(sys.argv[1]) if sys.argv[1:] else main())

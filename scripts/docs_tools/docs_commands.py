#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the commands that README and docs show, in the environment that a user has.

    scripts/docs_tools/docs_commands.py [--pages WORD...] [--command PATH] [--slow]

Every ``tvm-distir`` of a ``console`` or ``bash`` block is run, page by page, by the one in
``.venv/bin``, which ``scripts/demo`` makes, in an empty folder with small files of the names that
the page uses (``model.onnx``, ``plan.json``, ...). Those of SLOW take minutes and run with
``--slow``; what needs an extra that is not installed is named. The pages below ``howto/`` are run
by the tests, files and output included. Exits with 1 where a command fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
SLOW = (
    "search ",
    "sweep ",
    "--train --strategy data_parallel+context_parallel",
    "zoo:moe --mesh dp=2",
)
EXTRAS = {"model.pt2": "torch", "folder/run.sh": "torch"}
_BLOCK = re.compile(r"^```(console|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

PLAN = {
    "schema_version": 1,
    "mesh": {"dp": 2},
    "rules": [{"param": "x", "placement": "S[0]"}],
}
HEAD = "from tvm.script import ir as I\nfrom tvm.script import relax as R\n\n@I.ir_module\n"
FUNCTION = """\
    @R.function
    def {name}(x: R.Tensor(({rows}, 16), "float32"), w: R.Tensor((16, 16), "float32")
               ) -> R.Tensor(({rows}, 16), "float32"):
        R.func_attr({{"num_input": 1}})
        with R.dataflow():
            h = R.matmul(x, w)
            y = R.nn.relu(h)
            R.output(y)
        return y
"""
TOWERS = """\
class Module:
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), z: R.Tensor((8, 16), "float32"),
             a: R.Tensor((16, 64), "float32"), b: R.Tensor((64, 16), "float32"),
             c: R.Tensor((16, 64), "float32"), d: R.Tensor((64, 16), "float32")
             ) -> R.Tensor((8, 16), "float32"):
        R.func_attr({"num_input": 2})
        with R.dataflow():
            h = R.matmul(x, a)
            i = R.matmul(h, b)
            j = R.matmul(z, c)
            k = R.matmul(j, d)
            y = R.add(i, k)
            R.output(y)
        return y
"""
STABLEHLO = """\
module @jit_model {
  func.func public @main(%arg0: tensor<16x32xf32> loc("w"), %arg1: tensor<8x16xf32> loc("tokens")) -> tensor<8x32xf32> {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    return %0 : tensor<8x32xf32>
  }
}
"""  # noqa: E501
ROWS = """\
m,k,n,time_us
4096,4096,4096,640
2048,2048,2048,105
8192,8192,8192,4800
"""


def commands(page: str) -> Iterator[str]:
    """The commands of a page, continued lines joined, without what they print."""
    for kind, text in _BLOCK.findall(page):
        joined = re.sub(r"\\\n\s*", " ", text)
        for line in joined.splitlines():
            line = line.removeprefix("$ ") if kind == "console" and line.startswith("$ ") else (
                line if kind == "bash" else ""
            )  # fmt: skip
            if line.startswith("tvm-distir "):
                yield line


def pages() -> Iterator[Path]:
    """README and the pages of docs that are not run by the tests."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def write_files(folder: Path) -> None:
    """Write small files of the names that pages use, the plain ones first."""
    import numpy as np
    import onnx
    from tests.models import gpt2_onnx

    import tvm_distir as td
    from tvm_distir.execution.deployment import safetensors

    several = HEAD + "class Module:\n"
    single = several + FUNCTION.format(name="main", rows=8)
    two = several + "\n".join(FUNCTION.format(name=n, rows=8) for n in ("prefill", "decode"))
    texts = {
        "model.py": single, "served.py": two, "towers.py": HEAD + TOWERS, "model.mlir": STABLEHLO,
        "plan.json": json.dumps(PLAN), "rows.csv": ROWS,
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    small = dict(hidden=64, heads=8, vocab=512, positions=64)
    onnx.save(gpt2_onnx.build(**small, batch=8), str(folder / "model.onnx"))
    onnx.save(gpt2_onnx.build(**small, batch=8), str(folder / "resnet50.onnx"))
    named = td.models.load_weights(str(folder / "model.onnx"))
    described = {n: (tuple(w.shape), str(w.dtype)) for n, w in named.items()}
    safetensors.write(folder / "model.safetensors", described, named.__getitem__)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "llama",
        [onnx.helper.make_tensor_value_info("x", 1, ["batch", "seq", 16])],
        [onnx.helper.make_tensor_value_info("y", 1, ["batch", "seq", 32])],
        [onnx.numpy_helper.from_array(np.ones((16, 32), "f4"), "w")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    open_dims = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(open_dims, str(folder / "llama.onnx"))
    ids = np.zeros((8, 16), "int64")
    np.savez(folder / "x.npz", input_ids=ids)
    local = td.distribute(td.from_tvmscript(str(folder / "model.py")), PLAN)
    (folder / "lowered.py").write_text(local.script(show_meta=True), encoding="utf-8")


def main() -> int:
    """Run the commands of all pages; return 1 where one fails."""
    parser = argparse.ArgumentParser(description="Run the commands that README and docs show.")
    parser.add_argument("--pages", nargs="*", default=[], help="pages whose name holds a word")
    parser.add_argument("--command", type=Path, default=ROOT / ".venv" / "bin" / "tvm-distir")
    parser.add_argument("--slow", action="store_true", help="run the long ones too")
    arguments = parser.parse_args()
    path = f"{arguments.command.resolve().parent}{os.pathsep}{os.environ['PATH']}"
    ran = failed = 0
    for page in pages():
        result = list(commands(page.read_text(encoding="utf-8")))
        if not result or (arguments.pages and not any(w in page.name for w in arguments.pages)):
            continue
        with tempfile.TemporaryDirectory() as name:
            write_files(Path(name))
            for command in result:
                why = _left_out(command, arguments.slow)
                if why:
                    print(f"{page.name}: {command[:100]}\n  not run: {why}", flush=True)
                    continue
                ran += 1
                failed += not _runs(command, Path(name), path, page.name)
    print(f"{ran} commands, {failed} failed")
    return int(bool(failed))


def _left_out(command: str, slow: bool) -> str:
    if not slow and any(words in command for words in SLOW):
        return "it takes long (--slow)"
    words = shlex.split(command)
    for file, extra in EXTRAS.items():
        if file in words:
            known = importlib.util.find_spec(extra) is not None
            return "torch makes or runs its file" if known else f"it needs the extra {extra}"
    return ""


def _runs(command: str, folder: Path, path: str, page: str) -> bool:
    start = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=dict(os.environ, PATH=path), text=True,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=1800,
    )  # fmt: skip
    good = done.returncode == 0
    print(f"{page}: {command[:150]}\n  {'good' if good else f'exit code {done.returncode}'}, "
          f"{time.monotonic() - start:.1f} s", flush=True)  # fmt: skip
    if not good:
        print("\n".join(f"  | {line[:250]}" for line in done.stderr.splitlines()[-6:]), flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())

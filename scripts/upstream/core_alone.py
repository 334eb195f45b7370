# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the compiler with the rest of the package absent.

``python scripts/upstream/core_alone.py [--tvm PATH_TO_TVM] [options of pytest]`` copies
``tvm_distir/core`` and ``tvm_distir/support`` to an empty folder, registers the ops there as TVM
would, and compares the texts of the passes of the compiler (``python/tests/passes_text``). With
``--tvm``, a checkout of apache/tvm, TVM's own DistIR tests run on these passes instead, as
``scripts/peers/run_tvm_distir_tests.py`` runs them on the whole package.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "support", "lib")
"""Folders of the package that are copied; ``lib`` has the native library of a wheel."""
INIT = """\
from tvm_distir.support import register_with_ffi

register_with_ffi()
from tvm_distir.core.ir.operators import register_ops
from tvm_distir.core.ops import register_inference
from tvm_distir.core.rewriting import separate_scopes

separate_scopes()
register_ops()
register_inference()
"""
TEXTS = """\
import sys

import tvm

import tvm_distir
from tests.passes_text import texts
from tvm_distir.core.passes import (
    AnnotateSharding,
    LegalizeRedistribute,
    LowerDistIR,
    PropagateSharding,
)
from tvm_distir.core.plan import Plan

passes = {
    "annotate": AnnotateSharding,
    "propagate": PropagateSharding,
    "legalize": LegalizeRedistribute,
    "lower": LowerDistIR,
}
for name, factory in passes.items():
    text = texts.read(name)
    options = [Plan.from_dict(text.plan)] if text.plan is not None else []
    tvm.ir.assert_structural_equal(factory(*options)(text.before), text.after)
beside = {name.split(".")[1] for name in sys.modules if name.startswith("tvm_distir.")}
print(f"{len(passes)} texts are equal; loaded: {', '.join(sorted(beside))}")
"""


def make_package(folder: Path) -> None:
    """Write a package ``tvm_distir`` that has the compiler only.

    Parameters
    ----------
    folder : Path
        The folder that the package is written to; it is created.
    """
    package = folder / "tvm_distir"
    package.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / "tvm_distir" / part
        if source.is_dir():
            shutil.copytree(source, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").write_text(INIT, encoding="utf-8")


def main() -> int:
    """Run the texts, or the tests of a checkout of TVM; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--tvm", type=Path, help="a checkout of apache/tvm")
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        make_package(Path(folder))
        path = os.pathsep.join([folder, str(ROOT / "python")])
        command = [sys.executable, "-c", TEXTS]
        if options.tvm is not None:
            script = ROOT / "scripts" / "peers" / "run_tvm_distir_tests.py"
            command = [sys.executable, str(script), str(options.tvm), *more]
        env = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, env=env, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())

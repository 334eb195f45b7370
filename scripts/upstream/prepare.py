# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the contributions to TVM, in their order, and check them on the installed wheel.

``python scripts/upstream/prepare.py FOLDER [--check] [--tvm CHECKOUT]``

FOLDER receives a folder per contribution of ``order.py``: its piece, its tests and its issues. The
folder ``10_rfc`` has the text and the modules that it refers to, in the layout of TVM's sources.
All modules import TVM alone. With ``--check`` the tests run on the installed wheel with the pieces
in place, and with the modules of the RFC in place of native passes, which are made to fail. With
``--tvm`` TVM's own DistIR tests of that checkout run as well, both ways, and ``native_search.py``.
The exit code is 0 if all pass.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import issue_text
import order

HERE = order.HERE
MODULES = Path("python", "tvm", "relax", "distributed", "transform")
TESTS = Path("tests", "python", "relax", "distributed")
LONG = "10_rfc"
ALSO_LONG = ("04_one_result", "05_work_list", "06_all_gather")
"""Contributions whose tests pass with the modules of the RFC as well."""
OWN_LONG = ("calls", "redistribute_on_2d_mesh", "time")
"""Tests of the number 10 that pass with the modules of the RFC."""
OUR_HEADER = """\
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""
ASF_HEADER = """\
# Licensed to the Apache Software Foundation (ASF) under one
# or more contributor license agreements.  See the NOTICE file
# distributed with this work for additional information
# regarding copyright ownership.  The ASF licenses this file
# to you under the Apache License, Version 2.0 (the
# "License"); you may not use this file except in compliance
# with the License.  You may obtain a copy of the License at
#
#   http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing,
# software distributed under the License is distributed on an
# "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY
# KIND, either express or implied.  See the License for the
# specific language governing permissions and limitations
# under the License.
"""


def long_tests() -> list[Path]:
    """Return the files of the tests that pass with the modules of the RFC."""
    also = [path for name in ALSO_LONG for path in order.contribution(name).tests]
    own = [HERE / "tests" / f"test_10_{name}.py" for name in OWN_LONG]
    return [*also, *own, *sorted((HERE / "rfc/tests").glob("test_*.py"))]


def sources() -> dict[Path, Path]:
    """Return by file of the contributions where it goes."""
    helper = HERE / "tests" / "virtual_workers.py"
    targets: dict[Path, Path] = {}
    pairs: list[tuple[Path, Path]] = []
    for each in order.ORDER:
        folder = Path(each.name)
        files = [*each.tests, *each.checked, helper, *map(issue_text.path_of, each.faults)]
        pairs += [(each.piece, folder / each.piece.name)]
        pairs += [(path, folder / path.name) for path in dict.fromkeys(files)]
    rfc = HERE / "rfc"
    pairs += [(path, LONG / MODULES / path.name) for path in sorted(rfc.glob("*.py"))]
    pairs += [(path, LONG / TESTS / path.name) for path in [*long_tests(), helper]]
    pairs += [(rfc / "rfc.md", Path(LONG, "rfc.md"))]
    pairs += [(path, Path(LONG, path.name)) for path in map(issue_text.path_of, order.RFC_FAULTS)]
    for source, target in pairs:
        targets[target] = source
    return targets


def write(folder: Path) -> list[Path]:
    """Write the files below a folder, and return their paths."""
    written = []
    for target, source in sources().items():
        text = source.read_text(encoding="utf-8")
        if source.suffix == ".py":
            if not text.startswith(OUR_HEADER):
                raise ValueError(f"{source} does not start with the license header")
            text = ASF_HEADER + text.removeprefix(OUR_HEADER)
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def run_tests(pieces: Sequence[Path], tests: Sequence[Path], selected: str | None) -> int:
    """Run tests on the wheel with pieces in place; return pytest's code."""
    helpers = [str(path) for path in dict.fromkeys(test.parent for test in tests)]
    environment = {
        **os.environ,
        "TVM_DEVICE_BACKEND_AUTOLOAD": "0",
        "TVM_PIECES": os.pathsep.join(map(str, pieces)),
        "PYTHONPATH": os.pathsep.join([str(HERE), *helpers]),
    }
    plugin = ["-p", "pieces_in_place", "-p", "no:cacheprovider", "-c", os.devnull]
    options = [f"--rootdir={HERE}", "--import-mode=importlib"]
    options += [] if selected is None else ["-k", selected]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *options, *map(str, tests)]
    return subprocess.run(command, env=environment, check=False).returncode


def check(folder: Path, checkout: Path | None, selected: str | None) -> int:
    """Run the tests of a folder with its pieces in place; return 0 if all pass."""
    pieces = [folder / each.name / each.piece.name for each in order.ORDER]
    tests = [folder / each.name / path.name for each in order.ORDER for path in each.checked]
    long = folder / LONG / MODULES
    tests_of_long = [folder / LONG / TESTS / path.name for path in long_tests()]
    codes = []
    if checkout is not None:
        theirs = folder / "tvm_tests"
        shutil.copytree(checkout / TESTS, theirs, dirs_exist_ok=True)
        tests, tests_of_long = [*tests, theirs], [*tests_of_long, theirs]
        native = [sys.executable, str(HERE / "native_search.py"), str(checkout)]
        codes.append(subprocess.run(native, check=False).returncode)
    codes.append(run_tests(pieces, tests, selected))
    codes.append(run_tests([long], tests_of_long, selected))
    return int(any(codes))  # a process that a signal ended has a negative code


def main() -> int:
    """Write, and check if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="write the contributions below this folder")
    parser.add_argument("--check", action="store_true", help="run the tests on the wheel")
    parser.add_argument("--tvm", type=Path, help="run TVM's DistIR tests of this checkout as well")
    parser.add_argument("-k", metavar="EXPRESSION", help="run only the tests that pytest selects")
    arguments = parser.parse_args()
    for path in write(arguments.folder):
        print(path)
    if arguments.check or arguments.tvm:
        tvm = arguments.tvm.resolve() if arguments.tvm else None
        return check(arguments.folder.resolve(), tvm, arguments.k)
    return 0


if __name__ == "__main__":
    sys.exit(main())

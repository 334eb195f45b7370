# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the passes that TVM could take as they are, in the layout of TVM's sources.

``python scripts/upstream/prepare.py FOLDER [--check] [--tvm CHECKOUT]``

FOLDER receives ``python/tvm/relax/distributed/transform/*.py`` and their tests below
``tests/python/relax/distributed``. The modules import TVM alone. With ``--check`` the tests run on
the installed wheel, with the modules in place of its native passes, which are made to fail; with
``--tvm`` TVM's own DistIR tests of that checkout run as well. The exit code is pytest's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULES = Path("python", "tvm", "relax", "distributed", "transform")
TESTS = Path("tests", "python", "relax", "distributed")
TESTED = (
    "test_distributed_legalize_redistribute.py",
    "test_distributed_propagate_sharding.py",
    "test_distributed_propagate_sharding_depth.py",
    "virtual_workers.py",
)
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


def write(folder: Path) -> list[Path]:
    """Write the modules and their tests below a folder, and return the paths."""
    sources = {path: MODULES / path.name for path in sorted((HERE / "pieces").glob("*.py"))}
    sources |= {HERE / "tests" / name: TESTS / name for name in TESTED}
    sources |= {path: TESTS / path.name for path in sorted((HERE / "pieces/tests").glob("*.py"))}
    for source, target in sources.items():
        text = source.read_text(encoding="utf-8")
        if not text.startswith(OUR_HEADER):
            raise ValueError(f"{source} does not start with the license header")
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ASF_HEADER + text.removeprefix(OUR_HEADER), encoding="utf-8")
    return [folder / target for target in sources.values()]


def check(folder: Path, checkout: Path | None, selected: str | None) -> int:
    """Run the tests of a folder on the wheel with its modules in place; return pytest's code."""
    paths = [str(folder / TESTS)]
    if checkout is not None:
        copied = folder / "tvm_tests"
        shutil.copytree(checkout / TESTS, copied, dirs_exist_ok=True)
        paths.append(str(copied))
    environment = {
        **os.environ,
        "TVM_DEVICE_BACKEND_AUTOLOAD": "0",
        "TVM_PIECES": str((folder / MODULES).resolve()),
        "PYTHONPATH": os.pathsep.join([str(HERE), str((folder / TESTS).resolve())]),
    }
    plugin = ["-p", "pieces_in_place", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *paths]
    command += [] if selected is None else ["-k", selected]
    return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


def main() -> int:
    """Write, and check if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="write the modules and tests below this folder")
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

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Module paths of earlier versions name the modules of this one."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import tvm_distir as td
from tvm_distir.public_paths import PATHS


@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith("__main__")])
def test_a_path_is_the_module_itself(path: str) -> None:
    module = importlib.import_module(f"tvm_distir.{PATHS[path]}")
    assert importlib.import_module(f"tvm_distir.{path}") is module
    assert sys.modules[f"tvm_distir.{path}"] is module


def test_paths_are_attributes_of_the_package() -> None:
    assert td.strategy.make_plan is td.planning.make_plan
    assert callable(td.explain), "a function, which no path hides"


def test_a_deployed_folder_is_served_by_its_earlier_path() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tvm_distir.serve", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "FOLDER" in done.stdout

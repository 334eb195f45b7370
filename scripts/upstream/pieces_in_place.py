# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: prepared modules in place of what the wheel has.

The environment variable ``TVM_PIECES`` names their files, each of which may have a function
``install``, or the folder of the modules that the RFC refers to. These replace native passes,
which are made to fail, so that none of them does the work.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "tvm.relax.distributed.transform"
LONG = {"LegalizeRedistribute": "legalize_redistribute", "PropagateSharding": "propagate_sharding"}


def load(path: Path) -> ModuleType:
    """Import a piece as a part of TVM's package of passes."""
    importlib.import_module(PACKAGE)
    name = f"{PACKAGE}.{path.stem.lstrip('0123456789_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} is no Python module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _refuse(*_: Any) -> None:
    raise AssertionError("a native pass was called")


def _replace_passes(folder: str) -> None:
    """Put the modules of a folder in place of native passes."""
    transform = importlib.import_module(PACKAGE)
    transform.__path__.append(folder)
    for name, module in LONG.items():
        if not hasattr(transform._ffi_api, name):
            raise RuntimeError(f"TVM has no native {name}: nothing would be replaced")
        setattr(transform._ffi_api, name, _refuse)
        loaded = importlib.import_module(f"{PACKAGE}.{module}")
        setattr(transform, name, getattr(loaded, name))


def pytest_configure() -> None:
    """Import what the environment names, and install it."""
    for text in os.environ["TVM_PIECES"].split(os.pathsep):
        if Path(text).is_dir():
            _replace_passes(text)
        else:
            getattr(load(Path(text)), "install", lambda: None)()

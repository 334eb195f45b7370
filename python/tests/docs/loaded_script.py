# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Load a script of ``scripts`` as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


def loaded_script(name: str, folder: str = "docs_tools") -> ModuleType:
    """Run ``name.py`` as an import, with its folder on the path as for a script."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS / folder)
        spec.loader.exec_module(module)
    return module

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The linter and the type checker find nothing (configured in pyproject.toml)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def _run(root: Path, tool: str, *arguments: str) -> None:
    if find_spec(tool) is None:
        message = f"{tool} is not installed: scripts/setup test dev"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    command = [sys.executable, "-m", tool, *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_ruff(root: Path) -> None:
    _run(root, "ruff", "check", "--output-format=concise", ".")


def test_ruff_format(root: Path) -> None:
    _run(root, "ruff", "format", "--check", "--output-format=concise", ".")


def test_mypy(root: Path) -> None:
    _run(root, "mypy", "--no-error-summary")

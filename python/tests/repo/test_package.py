# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The installed package holds what the source tree holds, and the native library besides."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

import tvm_distir


@pytest.fixture(scope="module")
def distribution() -> metadata.Distribution:
    """The installed distribution; a run against the source tree alone has none."""
    try:
        return metadata.distribution("tvm_distir")
    except metadata.PackageNotFoundError:
        pytest.skip("tvm_distir is not installed: scripts/setup test")


@pytest.fixture(scope="module")
def installed(distribution: metadata.Distribution) -> set[str]:
    return {str(path) for path in distribution.files or []}


def test_every_tracked_file_is_installed(files: list[Path], installed: set[str]) -> None:
    packages = ("tvm_distir", "tvm_distir_command")
    expected = {path.as_posix() for path in files if path.parts[0] in packages}
    assert expected - installed == set()
    assert "tvm_distir/py.typed" in expected


def test_native_library_is_installed(installed: set[str]) -> None:
    libraries = [path for path in installed if re.fullmatch(r"tvm_distir/lib/[^/]+\.so", path)]
    assert len(libraries) == 1


def test_version_has_one_source(root: Path, distribution: metadata.Distribution) -> None:
    assert distribution.version == tvm_distir.__version__
    for file, line in {
        "CHANGELOG.md": f"\n## [{tvm_distir.__version__}] - 2",
        "CITATION.cff": f"\nversion: {tvm_distir.__version__}\n",
        "docs/install.md": f"/tvm_distir-{tvm_distir.__version__}-py3-none-",
    }.items():
        assert line in (root / file).read_text(encoding="utf-8"), file


def test_entry_points_can_be_loaded(distribution: metadata.Distribution) -> None:
    matches = {(point.group, point.name): point for point in distribution.entry_points}
    assert set(matches) == {("console_scripts", "tvm-distir"), ("tvm.backends", "tvm_distir")}
    for point in matches.values():
        assert callable(point.load())


def test_command_is_installed(distribution: metadata.Distribution) -> None:
    command = Path(sysconfig.get_path("scripts"), "tvm-distir")
    done = subprocess.run([command, "--version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"tvm-distir {tvm_distir.__version__}"


def test_import_of_tvm_alone_calls_the_plugin_without_a_warning(
    distribution: metadata.Distribution,
) -> None:
    """TVM reports a failing plugin as a warning only: make it an error."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            "import tvm, sys; print('tvm_distir' in sys.modules)",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"

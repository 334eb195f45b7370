# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Which versions of TVM and of its FFI are refused, and with what words."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from tests.child_processes import child_environment
from tvm_distir.support import versions as _versions
from tvm_distir.support.errors.tree import DependencyError

TVM, FFI = _versions.PINS
Runner = Callable[[str], "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("pin", "version", "expected"),
    [
        (TVM, "0.25.1", False),
        (TVM, "0.26rc1", False),
        (TVM, "0.26.0", True),
        (TVM, "0.26.1", True),
        (TVM, "0.27", True),
        (TVM, "0.27.0", True),
        (TVM, "0.27.0.post1", True),
        (TVM, "0.27.3+cu130", True),
        (TVM, "0.27.0rc0", False),
        (TVM, "0.27.dev12", False),
        (TVM, "0.28.0", False),
        (TVM, "0.28.dev0", False),
        (TVM, "0.270.0", False),
        (TVM, "1.27.0", False),
        (TVM, "unknown", False),
        (TVM, "", False),
        (FFI, "0.1.13", False),
        (FFI, "0.1.14", False),
        (FFI, "0.1.14.post0", True),
        (FFI, "0.1.14.post1", True),
        (FFI, "0.1.14.post11", True),
        (FFI, "0.1.14.1", True),
        (FFI, "0.1.15rc1", False),
        (FFI, "0.1.15", False),
        (FFI, "0.1.15.post2", False),
        (FFI, "0.2.0", False),
    ],
)
def test_accepts(pin: _versions.VersionRange, version: str, expected: bool) -> None:
    assert _versions.accepts(pin, version) is expected


@pytest.mark.parametrize("pin", _versions.PINS, ids=lambda pin: pin.distribution)
def test_pins_are_those_of_pyproject(pin: _versions.VersionRange) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    requirements = re.findall(rf'^  "({pin.distribution}[=<>].*)",$', text, re.MULTILINE)
    # The FFI stands there twice: what the library is built against, and what it runs with.
    assert requirements == [pin.requirement] * (1 if pin is TVM else 2)


def _fake(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(distribution: str) -> str:
        if distribution not in versions:
            raise metadata.PackageNotFoundError(distribution)
        return versions[distribution]

    monkeypatch.setattr(_versions.metadata, "version", version)


@pytest.mark.parametrize(
    ("versions", "code", "words"),
    [
        ({}, "DIST0101", "apache-tvm is not installed"),
        ({"apache-tvm": "0.25.1"}, "DIST0101", "apache-tvm 0.25.1 .*tried: 0.26.0, 0.27"),
        ({"apache-tvm": "0.27.0.post1"}, "DIST0102", "apache-tvm-ffi is not installed"),
        (
            {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15.post2"},
            "DIST0102",
            "apache-tvm-ffi 0.1.15.post2 is installed",
        ),
    ],
)
def test_refusal_names_what_was_found_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], code: str, words: str
) -> None:
    _fake(monkeypatch, versions)
    with pytest.raises(DependencyError, match=words) as caught:
        _versions.check_versions()
    assert caught.value.code == code
    newer = ", or set TVM_DISTIR_UNTRIED_TVM=1 to try it"
    assert caught.value.remedy == (
        'pip install "apache-tvm>=0.26,<0.28" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'
        + (newer if "0.1.15" in words else "")
    )


@pytest.mark.parametrize("tvm", ["0.28.0", "0.28.dev3", "0.28.0rc1", "1.0"])
def test_a_newer_version_can_be_tried(monkeypatch: pytest.MonkeyPatch, tvm: str) -> None:
    _fake(monkeypatch, {"apache-tvm": tvm, "apache-tvm-ffi": "0.1.15.post2"})
    monkeypatch.setenv("TVM_DISTIR_UNTRIED_TVM", "0")
    with pytest.raises(DependencyError, match="requires"):
        _versions.check_versions()
    monkeypatch.setenv("TVM_DISTIR_UNTRIED_TVM", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _versions.check_versions()
    assert [warning.category for warning in caught] == [_versions.UntriedVersionWarning] * 2
    assert f"apache-tvm {tvm} is untried" in str(caught[0].message)
    assert "apache-tvm-ffi 0.1.15.post2 is untried" in str(caught[1].message)


@pytest.mark.parametrize("version", ["0.25.0", "0.26.0rc1", "0.27.dev1", "unknown"])
def test_an_older_version_cannot_be_tried(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    _fake(monkeypatch, {"apache-tvm": version, "apache-tvm-ffi": "0.1.14.post0"})
    monkeypatch.setenv("TVM_DISTIR_UNTRIED_TVM", "1")
    with pytest.raises(DependencyError, match="DIST0101") as caught:
        _versions.check_versions()
    assert "UNTRIED" not in str(caught.value)


@pytest.mark.parametrize("pin", _versions.PINS, ids=lambda pin: pin.distribution)
def test_tried_versions_are_accepted(pin: _versions.VersionRange) -> None:
    assert pin.tried and all(_versions.accepts(pin, version) for version in pin.tried)


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1"])
def test_good_versions_pass(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    _fake(monkeypatch, {"apache-tvm": version, "apache-tvm-ffi": "0.1.14.post0"})
    _versions.check_versions()


@pytest.fixture
def with_old_tvm(tmp_path: Path) -> Runner:
    """Run a program that finds another version of TVM on a path before the real one."""
    info = tmp_path / "apache_tvm-0.25.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: apache-tvm\nVersion: 0.25.1\n")

    def run_with_old_tvm(program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "import sys\n" + program],
            capture_output=True,
            text=True,
            env=child_environment(tmp_path, ROOT),
        )

    return run_with_old_tvm


WRONG = "DIST0101 import: apache-tvm 0.25.1 is installed"


def test_import_refuses_before_tvm_is_loaded(with_old_tvm: Runner) -> None:
    done = with_old_tvm(
        "try:\n    import tvm_distir\n"
        "except Exception as error:\n    print(error)\n"
        "print(sorted({'tvm', 'tvm_ffi'} & set(sys.modules)))\n"
    )
    assert done.returncode == 0, done.stderr
    message, loaded = done.stdout.splitlines()
    assert message.startswith(WRONG)
    assert loaded == "[]"


def test_import_never_ends_the_process(with_old_tvm: Runner) -> None:
    """Whatever the program is called: it can catch the error."""
    done = with_old_tvm(
        "sys.argv[0] = '/bin/tvm-distir'\n"
        "try:\n    import tvm_distir\nexcept Exception:\n    print('caught')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "caught\n", "")


def test_the_command_says_so_in_one_line(with_old_tvm: Runner) -> None:
    name, _, function = _script().partition(":")
    done = with_old_tvm(f"import {name}\nsys.exit({name}.{function}())\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(WRONG) and len(done.stderr.splitlines()) == 1


def test_the_command_hides_no_other_failure(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['tvm_distir'] = None\n"
        "import tvm_distir_command\nsys.exit(tvm_distir_command.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=child_environment(ROOT),
    )
    assert done.returncode == 1 and "Traceback" in done.stderr


def _script() -> str:
    """What the console script calls, ``module:function``."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (result,) = re.findall(r'^tvm-distir = "(.*)"$', text, re.MULTILINE)
    return result

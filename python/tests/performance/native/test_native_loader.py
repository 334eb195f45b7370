# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The loader: where it looks, and what it says of a library that is missing or cannot be used."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child_processes import child_environment
from tests.references import EVENT_LOOPS, NODES
from tvm_distir.performance.event_loop.schedule import schedule
from tvm_distir.performance.event_loop.tasks import Tasks
from tvm_distir.support.errors.tree import DependencyError
from tvm_distir.support.native import loader
from tvm_distir.support.native.loader import LIBRARY_VARIABLE, library_path, load_library

SOURCES = Path(__file__).parents[4] / "passes"


def refused():
    with pytest.raises(DependencyError) as caught:
        load_library()
    assert caught.value.code == "DIST0110"
    assert caught.value.remedy
    return str(caught.value)


def test_variable_names_no_file(monkeypatch, tmp_path):
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    assert "none.so" in refused()


def test_no_library_is_an_error_of_the_scheduler_too(monkeypatch, tmp_path):
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "none.so"))
    with pytest.raises(DependencyError):
        schedule(Tasks.from_pairs([1], [0], []))


def test_a_file_that_is_no_library(monkeypatch, tmp_path):
    path = tmp_path / "text.so"
    path.write_text("hello")
    monkeypatch.setenv(LIBRARY_VARIABLE, str(path))
    assert "cannot be loaded" in refused()


def test_a_copy_is_loaded(monkeypatch, tmp_path):
    path = tmp_path / "copy.so"
    shutil.copy(library_path(), path)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(path))
    assert load_library()["abi_version"]() == loader.ABI_VERSION


def test_other_version(monkeypatch, tmp_path):
    path = tmp_path / "old.so"
    shutil.copy(library_path(), path)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(path))
    built = loader.ABI_VERSION
    monkeypatch.setattr(loader, "ABI_VERSION", 99)
    text = refused()
    assert f"has version {built}" in text
    assert "requires 99" in text


def test_a_library_of_others(monkeypatch, tmp_path):
    source, path = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int nothing(void) { return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, source], check=True)
    monkeypatch.setenv(LIBRARY_VARIABLE, str(path))
    assert "another library" in refused()


def test_not_installed(monkeypatch, tmp_path):
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(loader, "_library", loader._library.__wrapped__)
    monkeypatch.setattr(loader, "_candidates", lambda: iter([tmp_path / "a.so", tmp_path / "b.so"]))
    text = refused()
    assert "a.so" in text
    assert "b.so" in text
    assert LIBRARY_VARIABLE in text


def test_the_first_candidate_that_exists(monkeypatch, tmp_path):
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    (tmp_path / "b.so").touch()
    monkeypatch.setattr(loader, "_candidates", lambda: iter([tmp_path / "a.so", tmp_path / "b.so"]))
    assert library_path() == tmp_path / "b.so"


def test_import_loads_nothing(tmp_path):
    """A library that cannot be used disturbs whoever does not need it in no way."""
    path = tmp_path / "text.so"
    path.write_text("hello")
    code = "import tvm_distir.support.native.loader as l; print(l._load.cache_info())"
    out = run(["-c", code], LIBRARY_VARIABLE, path)
    assert "misses=0" in out.stdout and not out.returncode, out.stderr


def run(words, variable, path):
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=child_environment(**{variable: str(path)}),
    )


@pytest.mark.parametrize("words", [["-c", "import tvm_distir"], ["-m", "tvm_distir_command", "-h"]])
def test_a_package_without_its_library_is_refused_at_import(words, tmp_path):
    """A traceback for programs, and a single line for the command."""
    done = run(words, LIBRARY_VARIABLE, tmp_path / "none.so")
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and not done.stdout
    assert re.search(r"DIST0110 native library: .*none\.so, which is not a file \[Build", lines[-1])
    assert len(lines) == 1 or words[0] == "-c"


def test_every_native_function_has_an_oracle():
    """All but the collectives, which are compared with their meaning."""
    text = "".join(path.read_text() for path in SOURCES.rglob("*.cc"))
    exported = set(re.findall(r"EXPORT_TYPED_FUNC\((\w+),", text))
    collectives = {name for name in exported if name.startswith("ccl_")}
    others = {"tables", "serve_steps", "abi_version"}
    assert exported - collectives == {*EVENT_LOOPS, *NODES, *others} and collectives

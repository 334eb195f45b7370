# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The loader: where it looks, what stands for an absent library, and that nothing is silent."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.child_processes import child_environment
from tvm_distir.performance.event_loop.schedule import schedule
from tvm_distir.performance.event_loop.tasks import Tasks
from tvm_distir.support.errors.tree import DependencyError
from tvm_distir.support.native import loader
from tvm_distir.support.native.loader import (
    LIBRARY_VARIABLE,
    NO_LIBRARY,
    AbsentLibraryWarning,
    library_path,
    load_library,
    reference,
    warn_without_library,
)
from tvm_distir.support.native.references import REFERENCES

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
    """Neither a missing nor a broken library disturbs whoever does not need it."""
    code = "import tvm_distir.support.native.loader as l; print(l._load.cache_info())"
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=child_environment(**{LIBRARY_VARIABLE: "/none.so"}),
    )
    assert "misses=0" in out.stdout


def test_every_native_function_has_a_reference(monkeypatch):
    """All but the collectives, which engines replace or refuse."""
    text = "".join(path.read_text() for path in SOURCES.rglob("*.cc"))
    exported = set(re.findall(r"EXPORT_TYPED_FUNC\((\w+),", text))
    collectives = {name for name in exported if name.startswith("ccl_")}
    assert exported - collectives == {*REFERENCES, "abi_version"} and collectives
    monkeypatch.setenv(LIBRARY_VARIABLE, NO_LIBRARY)
    assert all(callable(reference(name)) for name in REFERENCES)
    assert LIBRARY_VARIABLE in refused()


def test_an_absent_library_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv(LIBRARY_VARIABLE, NO_LIBRARY)
    with pytest.warns(AbsentLibraryWarning, match="native library absent"):
        warn_without_library()
    monkeypatch.delenv(LIBRARY_VARIABLE)
    monkeypatch.setattr(loader, "_has_library", loader._has_library.__wrapped__)
    monkeypatch.setattr(loader, "_candidates", lambda: iter([tmp_path / "a.so"]))
    with pytest.warns(AbsentLibraryWarning):
        warn_without_library()
    (tmp_path / "a.so").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_without_library()
        assert reference("schedule") is None

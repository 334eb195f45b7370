# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What installed packages offer is known by name, and imported when it is asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tvm_distir.support.errors.tree import DependencyError, UsageError
from tvm_distir.support.plugins import registry
from tvm_distir.support.plugins.registry import Registry, offers

if TYPE_CHECKING:
    from collections.abc import Callable

    Install = Callable[[str, str, str], object]

GROUP = "tvm_distir.test_things"
OWN = {"join": "posixpath:join", "split": "posixpath:split"}
REGISTRY = Registry(GROUP, OWN)


def entries(*lines: str) -> str:
    return "\n".join([f"[{GROUP}]", *lines, ""])


def test_names_are_known_without_an_import(install: Install) -> None:
    install("dist_made", "raise ValueError('planted')", entries("zip = dist_made:zip_", "a = os"))
    assert REGISTRY.names() == ("join", "split", "a", "zip")
    assert "zip" in REGISTRY and "zap" not in REGISTRY
    assert "dist_made" not in sys.modules


def test_things_are_loaded_by_name(install: Install) -> None:
    source = "class Box:\n    def thing(): return 7\n"
    install("dist_made", source, entries("b = dist_made:Box.thing"))
    import posixpath

    assert REGISTRY.load("b")() == 7
    assert REGISTRY.load("join") is posixpath.join
    with pytest.raises(KeyError):
        REGISTRY.load("zap")


def test_own_names_win(install: Install) -> None:
    install("dist_made", "", entries("join = dist_made:missing"))
    assert REGISTRY.names() == ("join", "split")
    assert callable(REGISTRY.load("join"))


def test_packages_that_come_later_are_seen(install: Install) -> None:
    assert "zip" not in REGISTRY
    install("dist_made", "zip_ = 3", entries("zip = dist_made:zip_"))
    assert REGISTRY.load("zip") == 3


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("raise ValueError('planted')", "dist_made:x", "ValueError: planted"),
        ("", "dist_made:x", "AttributeError"),
        ("", "dist_none:x", "ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_loaded_names_its_package(
    install: Install, source: str, target: str, said: str
) -> None:
    install("dist_made", source, entries(f"zip = {target}"))
    with pytest.raises(DependencyError) as caught:
        REGISTRY.load("zip")
    assert caught.value.code == "DIST0114"
    assert caught.value.location == f"dist_made, entry point zip = {target}"
    assert said in caught.value.what


def test_two_packages_with_one_name_are_refused(install: Install, tmp_path: Path) -> None:
    install("dist_made", "", entries("zip = dist_made:x"))
    install("dist_other", "", entries("zip = dist_other:x"))
    with pytest.raises(DependencyError, match="DIST0114") as caught:
        offers(GROUP)
    assert "dist_made" in str(caught.value) and "dist_other" in str(caught.value)


def test_a_process_registers_and_replaces(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registrations", {})
    REGISTRY.register("mine", 1)
    assert REGISTRY.names() == ("join", "split", "mine") and REGISTRY.load("mine") == 1
    REGISTRY.register("mine", 2)
    assert REGISTRY.load("mine") == 2 and "mine" not in Registry("tvm_distir.others", {})
    for name in ("join", "a b"):
        with pytest.raises(UsageError, match="DIST0152"):
            REGISTRY.register(name, 3)
    install("dist_made", "", entries("mine = dist_made:missing"))
    with pytest.raises(DependencyError, match="dist_made provides the same name"):
        offers(GROUP)

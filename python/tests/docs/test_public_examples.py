# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run the example that the docstring of each public name has."""

from __future__ import annotations

import ast
import doctest
import inspect
import types
from pathlib import Path

import numpy as np
import pytest

import tvm_distir as td

STUB = Path(td.__file__).with_suffix(".pyi")
WINGS = frozenset(
    {"core", "execution", "hardware", "models", "performance", "planning", "support", "transforms"}
)
"""Folders of the package, whose ``README.md`` files describe them."""
EXTRAS = {
    "check": "torch",
    "from_exported_program": "torch",
    "from_jax": "jax",
    "jit": "jax",
    "to_jax": "jax",
    "trace_ranks": "torch",
}
"""The libraries that the examples of some names need."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _public_names() -> list[str]:
    """Return the names that the stub of the package hands on, without its folders."""
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    return sorted(names - WINGS)


NAMES = _public_names()


def _example(name: str) -> doctest.DocTest:
    """Return the example in the docstring of a public name."""
    text = inspect.getdoc(getattr(td, name)) or ""
    names = {"td": td, "np": np, "Plan": td.Plan, "P": td.P}
    return doctest.DocTestParser().get_doctest(text, names, name, name, 0)


def test_the_stub_has_the_public_names() -> None:
    assert {"analyze", "distribute", "search", "verify", "zoo"} <= set(NAMES)
    assert all(isinstance(getattr(td, wing), types.ModuleType) for wing in WINGS)


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_an_example(name: str) -> None:
    examples = _example(name).examples
    assert any(example.want for example in examples), "the docstring shows no result"
    assert not any(doctest.SKIP in example.options for example in examples)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_true(name: str) -> None:
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name], reason=f"the extra {EXTRAS[name]} is not installed")
    runner = doctest.DebugRunner(verbose=False, optionflags=FLAGS)
    try:
        runner.run(_example(name))
    except doctest.DocTestFailure as failure:
        pytest.fail(f"{failure.example.source}gives {failure.got}")
    except doctest.UnexpectedException as failure:
        raise failure.exc_info[1] from None

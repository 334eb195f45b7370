# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The nodes of TVM that ``passes/ffi`` accesses are listed, and a missing one has an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tvm_distir.support.errors.tree import DependencyError
from tvm_distir.support.native import loader, tvm_nodes

SOURCES = Path(__file__).parents[4] / "passes" / "ffi"


def test_tables_hold_the_names_in_the_sources() -> None:
    text = "\n".join(path.read_text() for path in sorted(SOURCES.iterdir()))
    fields = set(re.findall(r'\{"((?:ir|relax)\.[\w.]+)", "(\w+)"\}', text))
    assert fields == {(key, name) for key, names in tvm_nodes.FIELDS.items() for name in names}
    recognized = set(re.findall(r'TypeIndex\("([\w.]+)"\)', text)) - set(tvm_nodes.FIELDS)
    assert recognized == set(tvm_nodes.TYPE_KEYS)
    moved = dict(re.findall(r'\{"([\w.]+)", "(relax\.[\w.]+)"\},', text))
    assert moved == tvm_nodes.MOVED
    functions = set(re.findall(r'GetGlobalRequired\("([\w.]+)"\)', text))
    assert functions == set(tvm_nodes.FUNCTIONS)


def test_no_name_is_written_in_another_way() -> None:
    """Every type key in a string of the sources is in one of the tables."""
    text = "\n".join(path.read_text() for path in sorted(SOURCES.iterdir()))
    keys = set(re.findall(r'"((?:ir|relax)\.[\w.]+)"', text))
    moved = tvm_nodes.MOVED.values()
    assert keys == {*tvm_nodes.FIELDS, *tvm_nodes.TYPE_KEYS, *tvm_nodes.FUNCTIONS, *moved}


@pytest.mark.parametrize(
    ("table", "value", "message"),
    [
        ("FIELDS", {"ir.Call": ("op", "operands")}, 'no field "operands" of the node "ir.Call"'),
        ("FIELDS", {"ir.Invocation": ("op",)}, 'no node "ir.Invocation"'),
        ("TYPE_KEYS", ("relax.expr.Branch",), 'no node "relax.expr.Branch"'),
        ("FUNCTIONS", ("relax.MakeVar",), 'no function "relax.MakeVar"'),
    ],
)
def test_first_use_refuses_what_tvm_lacks(monkeypatch, table, value, message) -> None:
    monkeypatch.setattr(tvm_nodes, table, value)
    monkeypatch.setattr(loader, "check_nodes", tvm_nodes.check_nodes.__wrapped__)
    with pytest.raises(DependencyError) as caught:
        loader._native_function.__wrapped__("read_functions", None)
    assert caught.value.code == "DIST0115"
    assert message in str(caught.value)
    assert "apache-tvm" in caught.value.remedy

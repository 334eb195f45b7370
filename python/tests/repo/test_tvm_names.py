# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""One folder of the package names what differs between versions of TVM, and its private names."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, te
from tvm_names import LACKING, LIST, SEAM, Use, ask, main, package_uses, uses_in

from tvm_distir.support.tvm import moved_names

#: Private attributes of what is not TVM's: named tuples, argparse, torch, Python.
OF_OTHERS = {
    *("_asdict", "_field_defaults", "_actions", "_ArgumentGroup", "_getframe"),
    *("_decomp", "_c10d_functional", "_resolve_process_group", "_chunk_cat", "_foreach_copy"),
    *("_subclasses", "_pytree", "_get_default_store", "_get_backend"),
    *(f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient")),
    *(f"_scaled_dot_product_{kind}_attention_backward" for kind in ("flash", "efficient")),
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _listed() -> set[str]:
    return {name for names in json.loads(LIST.read_text("utf-8")).values() for name in names}


def _beginnings(name: str) -> set[str]:
    """A name and those that it is an attribute of, e.g. ``tvm.sym`` of ``tvm.sym.Analyzer``."""
    parts = name.split(".")
    return {".".join(parts[: i + 1]) for i in range(len(parts))}


def _faults(uses: list[Use], listed: set[str]) -> list[str]:
    """Uses outside of the seam of names in a list, or of private ones."""
    return [
        f"{use.path}:{use.line} {use.name}"
        for use in uses
        if SEAM not in use.path.parents
        and (_beginnings(use.name) & listed or any(map(_is_private, use.name.split("."))))
    ]


def test_only_the_seam_names_what_versions_of_tvm_lack_or_keep_private(modules, root) -> None:
    uses = [use for module in modules for use in uses_in(module.tree, root / module.path)]
    assert len(uses) > 5000, "hardly any use was found"
    assert _faults(uses, _listed()) == []


def _private_attributes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Private attributes of anything but ``self`` and ``cls``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr, node.lineno


def _defined(tree: ast.AST) -> Iterator[str]:
    """Names that a file defines: functions, classes, fields, attributes and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_no_value_is_asked_for_a_private_attribute_of_tvm(modules, root: Path) -> None:
    """An attribute that begins with an underscore is one that the package defines."""
    defined = {name for module in modules for name in _defined(module.tree)}
    found = [
        f"{module.path}:{line} {name}"
        for module in modules
        if SEAM not in (root / module.path).parents
        for name, line in _private_attributes(module.tree)
        if name not in defined | OF_OTHERS
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from tvm import ir\nir.GenericConst", True),
        ("from tvm.ir import GenericConst as C", True),
        ("import tvm\ntvm.ir.GenericConst.value", True),
        ("import tvm.sym as s\ns.Analyzer()", True),
        ("def f():\n from tvm.arith import Analyzer", True),
        ("from tvm import relax\nrelax.expr._update_type(x, y)", True),
        ("from tvm.base import _RUNTIME_ONLY", True),
        ("from tvm import ir\nir.Call(x, y).op", False),
        ("from tvm_distir.support import GenericConst", False),
    ],
)
def test_planted_uses_are_found(source: str, found: bool) -> None:
    uses = list(uses_in(ast.parse(source), Path("x.py")))
    assert bool(_faults(uses, _listed())) is found


def test_a_private_attribute_of_a_value_is_found() -> None:
    tree = ast.parse("builder._end_block()\nself._mine\nx.__class__")
    assert list(_private_attributes(tree)) == [("_end_block", 1)]


@pytest.mark.parametrize("options", [[], ["installed", "--write"]])
def test_the_script_refuses_options_that_it_would_ignore(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["tvm_names.py", *options])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2


@pytest.mark.nightly
def test_the_tvm_in_use_has_every_name_of_the_package() -> None:
    """Also those in branches that no test runs; the seam names those of other versions, too."""
    names = sorted({use.name for use in package_uses() if SEAM not in use.path.parents})
    assert ask("installed", LACKING, names)[1] == []


def test_the_seam_offers_nodes_by_the_names_of_one_version() -> None:
    constant = relax.const(np.float32(2))
    assert type(constant) is moved_names.GenericConst and constant.value.numpy() == 2
    x = te.placeholder((4,), "int32", name="x")
    shifted = te.compute((4,), lambda i: x[i] >> 1)
    body = te.create_prim_func([x, shifted]).body
    assert isinstance(body, moved_names.SBlockRealize)
    block = body.block.body.body.block
    loads: list[object] = []
    tvm_ffi.structural_walk(block.body, (moved_names.TensorLoad, loads.append))
    assert [load.source.same_as(block.reads[0].source) for load in loads] == [True]
    kinds = [moved_names.node_kind(node) for node in (constant, loads[0], block.reads[0])]
    assert kinds == ["GenericConst", "TensorLoad", "TensorRegion"]
    assert moved_names.takes_bits(block.body.value) and not moved_names.takes_bits(loads[0])

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Each pass turns the module ``Before`` of its file into the module ``After``.

The modules are written by hand from the contracts of the passes. Names of variables are free;
names of functions, attributes, types, the order of bindings and what a dataflow block gives away
are not. Examples at level 5 leave the attribute ``dist.io`` out where no pass reads it.
"""

from __future__ import annotations

import ast

import pytest
import tvm
import tvm_ffi

from tests.passes_text.texts import FILES, HERE, constants, read
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.ir.attributes.keys import IO_ATTR
from tvm_distir.core.plan.plan import Plan
from tvm_distir.support.errors.tree import LevelError
from tvm_distir.transforms.registry import pass_names
from tvm_distir.transforms.spec import parse_passes


def is_at(mod: tvm.IRModule, level: str) -> bool:
    """Tell whether a module is at an IR level."""
    try:
        check_level(mod, level)
    except LevelError:
        return False
    return True


def test_every_pass_has_an_example() -> None:
    sources = [(HERE / f"{file}.py").read_text(encoding="utf-8") for file in FILES]
    texts = [constants(ast.parse(source))["PASS"] for source in sources]
    shown = {spec.name for text in texts for spec in parse_passes(text)}
    assert shown == set(pass_names()) - {"export"}, "an analysis leaves the module as it is"


@pytest.mark.parametrize("file", FILES)
def test_pass_gives_the_module_that_is_written(file: str) -> None:
    single = read(file)
    (spec,) = parse_passes(single.options)
    inputs = {} if single.plan is None else {"plan": Plan.from_dict(single.plan)}
    created = spec.make(**inputs)(single.before)
    tvm.ir.assert_structural_equal(created, single.after)
    assert not tvm_ffi.structural_equal(single.before, single.after)
    if IO_ATTR in str(single.after.script()) or spec.info.takes != ("local",):
        levels = [level for level in spec.info.takes if is_at(single.before, level)]
        assert levels, f"Before is at none of the levels {spec.info.takes}"
        check_level(single.after, spec.info.gives or levels[0])
    assert single.doc.endswith(".") and "\n\n" not in single.doc, (
        "one sentence says what to look at"
    )

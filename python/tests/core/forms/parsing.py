# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Parse the modules of these tests from short texts, and refuse them."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import tvm
from tvm import ir, relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import tvm_distir as td
from tests.core.forms.reference import agrees_with_tvm
from tvm_distir.support import DistIRError

ROWS = td.Plan(mesh={"tp": 2}, rules={"x": td.P("tp", None)})
COLUMNS = td.Plan(mesh={"tp": 2}, rules={"w": td.P(None, "tp")})
X_COLUMNS = td.Plan(mesh={"tp": 2}, rules={"x": td.P(None, "tp")})
X = 'x: R.Tensor((8, 16), "float32")'
W = 'w: R.Tensor((16, 16), "float32")'


def parsed(*functions: str, check: bool = True) -> ir.IRModule:
    """Parse a module ``M`` of functions."""
    body = textwrap.indent("\n".join(map(textwrap.dedent, functions)), "    ")
    text = f"@I.ir_module(check_well_formed={check})\nclass M:\n{body}"
    return tvm.script.from_source(text, {"I": I, "R": R, "T": T})


def main(lines: str, params: str = f"{X}, {W}", pure: bool = True) -> str:
    """Return the text of a function ``main`` that returns ``y``."""
    body = textwrap.indent(textwrap.dedent(lines).strip("\n"), "    ")
    return f"@R.function(pure={pure})\ndef main({params}):\n    cls = M\n{body}\n    return y\n"


def agrees(mod: Any, plan: td.Plan) -> None:
    """Verify that the distributed module computes what TVM compiles, and export it."""
    agrees_with_tvm(mod, [plan], original=relax.transform.LambdaLift()(mod))


def refusal(mod: Any, plan: td.Plan) -> DistIRError:
    """Return the error that refuses a module."""
    with pytest.raises(DistIRError) as caught:
        td.distribute(mod, plan)
    return caught.value

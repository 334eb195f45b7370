# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Errors keep their code, place and remedy, through the FFI too."""

from __future__ import annotations

import pytest
import tvm

from tvm_distir import errors
from tvm_distir.errors import DistIRError, tree

CLASSES = [getattr(errors, n) for n in errors.__all__ if n not in ("CODES", "nearest")]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("place", ["", "main/lv3 (matmul)", "zoo:gpt?size=x: y"])
@pytest.mark.parametrize("remedy", ["", 'Pad it to 12; "S[0]" is wrong.'])
def test_fields_survive_the_ffi(cls, place, remedy):
    """Raised in a pass, caught outside: the same class, text and fields."""
    error = cls("DIST0204", 'dim 1 of "x[0]": 10 is odd', place=place.split(": ")[0], remedy=remedy)

    @tvm.transform.module_pass(opt_level=0, name="test.raises")
    def run(mod, _):
        raise error

    with pytest.raises(DistIRError) as caught:
        run(tvm.IRModule())
    found = caught.value
    assert type(found) is cls
    assert str(found) == str(error)
    fields = ("code", "what", "place", "remedy")
    assert [getattr(found, f) for f in fields] == [getattr(error, f) for f in fields]


def test_exit_codes():
    """As documented for the command line."""
    codes = {cls.__name__: cls.exit_code for cls in CLASSES}
    special = {"UsageError": 2, "InfeasibleError": 3, "MismatchError": 70, "InternalError": 70}
    assert codes == {**dict.fromkeys(codes, 1), **special}


def test_the_nearest_name_is_offered():
    """A typing slip gets a hint, nonsense the list."""
    assert tree.nearest("megatorn", ["megatron", "data_parallel"]) == 'Did you mean "megatron"?'
    assert tree.nearest("zzz", ["b", "a"]) == "Known: a, b."

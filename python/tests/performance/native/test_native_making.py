# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Nodes made natively against the same made one by one."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import relax

from tvm_distir.core.rewriting.native.making import make_ports, make_variables
from tvm_distir.core.rewriting.nodes import make_var
from tvm_distir.support.native.loader import load_library

pytestmark = pytest.mark.usefixtures("kernels")

TYPES = [relax.TensorType((2, 3), "float32"), relax.TensorType((4,), "int64")]


def test_variables():
    names, which = ["x", "", "änderung", "x"], [0, 1, 1, 0]
    created = make_variables(names, TYPES, which)
    for var, name, number in zip(created, names, which, strict=True):
        single = make_var(name, TYPES[number])
        assert type(var) is type(single) and var.name == single.name and var.ty.same_as(single.ty)
    assert not created[0].same_as(created[3])
    assert make_variables([], TYPES, []) == []


def test_ports():
    described = [
        {"shape": tvm_ffi.convert([2, 3]), "dtype": "float32", "placement": "S[0], R"},
        {"shape": tvm_ffi.convert([]), "dtype": "int64", "placement": "R", "role": "data"},
    ]
    names, index, which = ["a", "b", "c"], [0, 2, 2], [1, 0, 0]
    created = make_ports(names, index, described, which)
    one_by_one = [
        {"index": i, "name": name, **described[number]}
        for name, i, number in zip(names, index, which)
    ]
    assert tvm_ffi.structural_equal(created, tvm_ffi.convert(one_by_one))
    for port, expected in zip(created, one_by_one, strict=True):
        assert list(port) == list(expected)


@pytest.mark.parametrize(
    ("said", "which", "kind", "message"),
    [
        ("a", (0,), ValueError, "no end"),
        ("a\0b\0", (0,), ValueError, "2 names, 1 are needed"),
        ("a\0", (2,), IndexError, "2 is not in"),
        ("a\0", (-1,), IndexError, "-1 is not in"),
    ],
)
@pytest.mark.parametrize("kernels", ["native"], indirect=True)
def test_what_does_not_fit_is_refused(said, which, kind, message):
    with pytest.raises(kind, match=message):
        load_library()["make_variables"](said, TYPES, which)

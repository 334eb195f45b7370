# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Errors are data: every field survives TVM's FFI, threads, pickling and copying."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import threading
import traceback
import weakref

import pytest
import tvm
import tvm_ffi

from tvm_distir.support import errors
from tvm_distir.support.errors.tree import DistIRError, LoweringError, PlanError, Violation

CLASSES = [
    v
    for n in errors.__all__
    if isinstance(v := getattr(errors, n), type) and issubclass(v, Exception)
]
FIELDS = ("code", "what", "location", "remedy", "violations")
# Texts that no reader of "CODE place: what [remedy]" could take apart again.
AWKWARD = [
    ("dim 1: 10 is odd", "zoo:gpt?size=x: y", "Write [S[0]], [R]."),
    ("a\nb [c]", "main/lv3 (matmul)", ""),
    ("", "", "x: y [z]"),
    ("größer als 2³¹ 🙂", "DIST0101 a: b", "Pad it."),
]


def fields_of(error):
    return [getattr(error, name) for name in FIELDS]


def passing(function):
    """A pass that calls a function on its module."""

    @tvm.transform.module_pass(opt_level=0, name="test.calls")
    def apply(mod, _):
        return function(mod)

    return apply


def raising(error, cause=None):
    def fail(_):
        raise error from cause

    return passing(fail)


def nested(depth, inner):
    """Each pass runs the next within a Sequential."""
    for _ in range(depth):
        inner = passing(tvm.transform.Sequential([inner]))
    return inner


def caught_from(function, *args):
    with pytest.raises(DistIRError) as caught:
        function(*args)
    return caught.value


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("what", "location", "remedy"), AWKWARD)
def test_fields_survive_the_ffi(cls, what, location, remedy):
    error = cls("DIST0204", what, location=location, remedy=remedy)
    result = caught_from(raising(error), tvm.IRModule())
    assert type(result) is cls
    assert fields_of(result) == fields_of(error)
    assert str(result) == str(error)


@pytest.mark.parametrize("depth", [1, 3])
def test_fields_survive_nested_passes(depth):
    listed = [Violation("DIST0204", "a: b", "x: y", "z [w]"), Violation("DIST0205", "c")]
    error = PlanError("DIST0221", "2 faults", location="p: q", violations=listed)
    result = caught_from(nested(depth, raising(error)), tvm.IRModule())
    assert type(result) is PlanError
    assert fields_of(result) == fields_of(error)
    assert result.violations == tuple(listed)


def test_the_backtrace_of_every_level_stays():
    result = caught_from(nested(2, raising(LoweringError("DIST0504", "x"))), tvm.IRModule())
    names = [frame.name for frame in traceback.extract_tb(result.__traceback__)]
    assert names.count("apply") == 3
    assert names[-1] == "fail"


def test_an_error_raised_anew_outside_crosses_again():
    """Caught in Python between two passes and raised from another error."""

    def wrap(mod):
        try:
            raising(LoweringError("DIST0504", "inner: [x]", location="a: b"))(mod)
        except DistIRError as error:
            raise PlanError("DIST0221", "outer", remedy="c [d]") from error

    result = caught_from(nested(1, passing(wrap)), tvm.IRModule())
    assert (type(result), result.what, result.remedy) == (PlanError, "outer", "c [d]")
    assert isinstance(result.__cause__, LoweringError)
    assert (result.__cause__.what, result.__cause__.location) == ("inner: [x]", "a: b")


def test_a_chain_of_causes_survives():
    """Ours and others, to the first of them."""
    first = KeyError("k")
    second = ValueError("v")
    second.__cause__ = first
    third = LoweringError("DIST0504", "third: x")
    third.__cause__ = second
    result = caught_from(raising(PlanError("DIST0221", "last"), third), tvm.IRModule())
    chain = []
    while result is not None:
        chain.append((type(result), getattr(result, "what", str(result))))
        result = result.__cause__
    assert chain == [
        (PlanError, "last"),
        (LoweringError, "third: x"),
        (ValueError, "v"),
        (KeyError, "\"'k'\""),
    ]


def test_a_circle_of_causes_ends():
    single, two = PlanError("DIST0221", "one"), PlanError("DIST0221", "two")
    single.__cause__, two.__cause__ = two, single
    assert caught_from(raising(single, two), tvm.IRModule()).what == "one"


def test_threads_keep_their_own_errors():
    matches = {}

    def work(number):
        error = PlanError("DIST0221", f"what {number}: [x]", location=f"p {number}: q")
        try:
            nested(2, raising(error))(tvm.IRModule())
        except DistIRError as caught:
            matches[number] = fields_of(caught) == fields_of(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert matches == dict.fromkeys(range(16), True)


class Own(PlanError):
    """A class that a third party derives and registers nowhere."""

    def __init__(self, name):
        super().__init__("DIST0221", f"no {name}: [x]", location="a: b")
        self.name = name


def test_an_unknown_class_comes_back_as_its_nearest_base():
    result = caught_from(raising(Own("tensor")), tvm.IRModule())
    assert type(result) is PlanError
    assert fields_of(result) == fields_of(Own("tensor"))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
@pytest.mark.parametrize("crossed", [False, True])
def test_copies_are_whole(copied, crossed):
    listed = [Violation("DIST0204", "a: b", "x: y", "z [w]")] * 2
    error = PlanError("DIST0221", "w: [v]", location="p: q", remedy="r", violations=listed)
    if crossed:
        error = caught_from(raising(error), tvm.IRModule())
    again = copied(error)
    assert type(again) is PlanError
    assert (fields_of(again), str(again)) == (fields_of(error), str(error))
    local = copied(Own("tensor"))
    assert (type(local), local.name, local.what) == (Own, "tensor", "no tensor: [x]")


def test_what_is_written_down_is_json():
    error = PlanError(
        "DIST0221",
        "w",
        location="p: q",
        remedy="r",
        violations=[Violation("DIST0204", "a", "b", "c")],
    )
    again = DistIRError.from_dict(json.loads(json.dumps(error.to_dict())))
    assert (type(again), fields_of(again)) == (PlanError, fields_of(error))
    unknown = {**error.to_dict(), "class": "NoSuchError"}
    assert type(DistIRError.from_dict(unknown)) is DistIRError


def test_a_single_fault_is_its_own_violation():
    error = PlanError("DIST0221", "w", location="p", remedy="r")
    assert error.violations == (Violation("DIST0221", "w", "p", "r"),)


def test_a_text_under_our_name_is_told_as_it_is():
    """C++ may throw a class of ours without fields: nothing is read out of its text."""
    text = "DIST0204 a: b [c]"
    result = tvm_ffi.core.Error("tvm_distir.PlanError", text, "").py_error()
    assert type(result) is PlanError
    assert (result.code, result.what, result.location, result.remedy) == ("DIST0901", text, "", "")


def test_crossing_leaks_nothing():
    """What the frames inside a pass held goes when the error outside does."""

    class Big:
        pass

    def once():
        big = Big()
        remaining.append(weakref.ref(big))

        def fail(_):
            try:
                raise ValueError(type(big).__name__)
            except ValueError as cause:
                raise PlanError("DIST0221", "x") from cause

        with pytest.raises(PlanError):
            passing(fail)(tvm.IRModule())

    remaining: list = []
    for _ in range(5):
        once()
    gc.collect()
    assert [ref() for ref in remaining] == [None] * 5

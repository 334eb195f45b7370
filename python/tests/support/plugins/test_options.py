# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Options are read off a function: types, defaults and what its docstring says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from tvm_distir.support.plugins.docstrings import parameter_help, summary
from tvm_distir.support.plugins.kinds import Unreadable, as_term
from tvm_distir.support.plugins.notation import read_calls
from tvm_distir.support.plugins.options import REQUIRED, options_of


@dataclass(frozen=True)
class Weights:
    wire: int = 1
    memory: float = 0.5


@dataclass(frozen=True)
class Machine:
    name: str

    @staticmethod
    def load(name: str) -> Machine:
        return Machine(f"loaded {name}")


def tool(
    mod: object,
    size_bytes: int = 8,
    share: float = 0.5,
    name: str = "tp",
    deep: bool = False,
    limit: int | None = None,
    kinds: Sequence[str] = (),
    mode: Literal["fast", "exact"] = "fast",
    machine: Machine | str = "small",
    weights: Weights | None = None,
    callback: Any = None,
    *,
    needed: int,
) -> None:
    """Do one thing (with :func:`other.tool`, ``x``). And another.

    Parameters
    ----------
    mod : object
    size_bytes : int
        How large, e.g. as
        :data:`a.SIZE` is. Not shown.
    share, name : float, str
        Both of these.

    Returns
    -------
    deep : bool
        Not this one.
    """


OPTIONS = options_of(tool)


def term_of(text: str) -> Any:
    ((_, term),) = read_calls(f"x{{o={text}}}", "test")[0].options.pairs
    return term


def test_options_are_the_parameters_with_a_text() -> None:
    assert list(OPTIONS) == [
        "size_bytes", "share", "name", "deep", "limit", "kinds", "mode", "machine", "weights",
        "needed",
    ]  # fmt: skip
    assert list(options_of(tool, without=("share", "needed")))[:2] == ["size_bytes", "name"]
    assert OPTIONS["needed"].default is REQUIRED and OPTIONS["needed"].default_text == ""
    shown = {name: option.default_text for name, option in OPTIONS.items()}
    assert shown["size_bytes"] == "8" and shown["deep"] == "false" and shown["limit"] == "none"
    assert shown["kinds"] == "[]" and shown["machine"] == "small"


def test_help_is_the_first_sentence_of_the_docstring() -> None:
    assert summary(tool) == "Do one thing (with tool, x)"
    assert OPTIONS["size_bytes"].help == "How large, e.g. as SIZE is"
    assert OPTIONS["share"].help == OPTIONS["name"].help == "Both of these"
    assert OPTIONS["deep"].help == ""
    assert parameter_help(lambda: None) == {} and summary(lambda: None) == ""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("size_bytes", "-12", -12),
        ("share", "1e3", 1000.0),
        ("name", "a.b/c", "a.b/c"),
        ("name", '"a, b"', "a, b"),
        ("name", "true", "true"),
        ("deep", "true", True),
        ("deep", "0", False),
        ("limit", "none", None),
        ("limit", "7", 7),
        ("kinds", "[a,b]", ("a", "b")),
        ("kinds", "[]", ()),
        ("mode", "exact", "exact"),
        ("machine", "big", "big"),
        ("weights", "{wire=2,memory=1}", {"wire": 2, "memory": 1.0}),
        ("weights", "none", None),
    ],
)
def test_values_are_read_by_their_type_and_print_back(name: str, text: str, value: object) -> None:
    option = OPTIONS[name]
    result = option.read(term_of(text))
    assert result == value and type(result) is type(value)
    again = option.read(term_of(str(as_term(result))))
    assert again == value and type(again) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "expects"),
    [
        ("size_bytes", "x", "an integer"),
        ("size_bytes", "1.5", "an integer"),
        ("size_bytes", '"1"', "an integer"),
        ("size_bytes", "9" * 5000, "an integer"),
        ("size_bytes", "[1]", "an integer"),
        ("share", "nan", "a number"),
        ("share", "x", "a number"),
        ("name", "[a]", "a text"),
        ("name", '""', "a text"),
        ("deep", "maybe", "true or false"),
        ("limit", '"none"', "an integer or none"),
        ("kinds", "a", "a list in brackets, each a text"),
        ("kinds", "[[a]]", "a text"),
        ("mode", "slow", "one of fast, exact"),
        ("machine", "[a]", "the name or file of a machine"),
        ("weights", "{wire=x}", "weights in braces, of wire, memory or none"),
        ("weights", "3", "weights in braces, of wire, memory or none"),
    ],
)
def test_a_value_of_another_type_says_what_is_expected(name: str, text: str, expects: str) -> None:
    with pytest.raises(Unreadable) as caught:
        OPTIONS[name].read(term_of(text))
    assert caught.value.expects == expects


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(Unreadable) as caught:
        OPTIONS["weights"].read(term_of("{wires=1}"))
    assert 'Did you mean "wire"?' in caught.value.remedy


def test_objects_are_made_when_they_are_needed() -> None:
    assert OPTIONS["machine"].make("big") == Machine("loaded big")
    assert OPTIONS["machine"].make(Machine("own")) == Machine("own")
    assert OPTIONS["weights"].make({"wire": 3}) == Weights(wire=3)
    assert OPTIONS["weights"].make(None) is None
    assert OPTIONS["kinds"].make(("a",)) == ("a",)


def test_types_are_taken_from_defaults_where_no_annotation_stands() -> None:
    def plain(mod, axis="tp", parts=2, sequence=False, other=None):  # type: ignore[no-untyped-def]
        """Nothing is said."""

    kinds = {name: option.kind.word for name, option in options_of(plain).items()}
    assert kinds == {"axis": "text", "parts": "int", "sequence": "bool", "other": "none"}


def test_a_union_of_types_that_must_be_made_has_no_text() -> None:
    def two(pair: Weights | Machine, either: int | str = 1) -> None:
        """Which of the two a text means would be a guess."""

    result = options_of(two)
    assert list(result) == ["either"]
    assert [result["either"].read(term_of(text)) for text in ("3", "x")] == [3, "x"]

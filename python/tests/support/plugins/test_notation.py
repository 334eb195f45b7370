# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Names with options as text: what is read prints back, what breaks the grammar is refused."""

from __future__ import annotations

import random

import pytest

from tvm_distir.support.errors.tree import UsageError
from tvm_distir.support.plugins.notation import (
    Call,
    ListToken,
    NamedFields,
    Term,
    Token,
    read_calls,
)


def made_value(draw: random.Random, depth: int) -> Term:
    """Any value; texts hold every sign of the grammar."""
    kind = draw.randrange(4 if depth else 2)
    if kind == 0:
        return Token("".join(draw.choices("ab1.-/:+\\'é", k=draw.randrange(1, 5))))
    if kind == 1:
        return Token("".join(draw.choices('a ,={}[]"\\\n\t', k=draw.randrange(0, 6))), quoted=True)
    if kind == 2:
        return ListToken(tuple(made_value(draw, depth - 1) for _ in range(draw.randrange(4))))
    return made_fields(draw, depth - 1)


def made_fields(draw: random.Random, depth: int) -> NamedFields:
    names = draw.sample(["a", "b_c", "d-e", "f.g"], draw.randrange(4))
    return NamedFields(tuple((name, made_value(draw, depth)) for name in names))


def test_what_is_written_reads_back() -> None:
    for seed in range(500):
        draw = random.Random(seed)
        calls = tuple(Call(f"p-{n}", made_fields(draw, 3)) for n in range(draw.randrange(1, 4)))
        assert read_calls(",".join(map(str, calls)), "-p") == calls
        spaced = " ,".join(f" {call}\n" for call in calls)
        assert read_calls(spaced, "-p") == calls


def test_the_parts_of_a_call() -> None:
    (bare, call) = read_calls('split, x{n=1,s="a b",l=[1,[2]],o={p=q}, e=[], z={}}', "-p")
    assert bare == Call("split")
    assert call.name == "x"
    assert dict(call.options.pairs) == {
        "n": Token("1"),
        "s": Token("a b", quoted=True),
        "l": ListToken((Token("1"), ListToken((Token("2"),)))),
        "o": NamedFields((("p", Token("q")),)),
        "e": ListToken(()),
        "z": NamedFields(()),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a name is expected, not the end"),
        ("a,", "a name is expected, not the end"),
        (",a", 'a name is expected, not ",a"'),
        ("a b", '"," or the end is expected, not "b"'),
        ("a{", "an option is expected, not the end"),
        ("a{b", '"=" is expected, not the end'),
        ("a{b=}", 'a value is expected, not "}"'),
        ("a{b=1", '"," is expected, not the end'),
        ("a{b=1 c=2}", '"," is expected, not "c=2}"'),
        ("a{b=[1}", '"," is expected, not "}"'),
        ('a{b="1}', "a value is expected"),
        ("a{b=1,b=2}", 'the option "b" is given twice'),
        ("a}", '"," or the end is expected, not "}"'),
        ('"a"', "a name is expected"),
    ],
)
def test_a_broken_text_is_refused_where_it_breaks(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_calls(text, "-p")
    assert caught.value.code == "DIST0152" and caught.value.location == "-p"
    assert message in caught.value.what

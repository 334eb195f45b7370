# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Options of a step are declared once, and commands and functions have all of them."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import dataclass, fields

import pytest

import tvm_distir as td
from tvm_distir.interface.command.options import add_options, read_fields
from tvm_distir.planning import STAGES, AnalysisOptions, StepOptions, Study, TrainingOptions
from tvm_distir.support import UsageError, option, option_fields, parse_count


@dataclass(frozen=True, eq=False)
class MoreOptions(StepOptions):
    """Options of a step, and a new one.

    Parameters
    ----------
    streams : int
        Use N streams, at most 50 % of them at once.
    """

    streams: int = option("distribute", "N", parse_count, default=1)


def test_every_option_has_a_stage_and_a_help_text() -> None:
    for options in (TrainingOptions, AnalysisOptions):
        for name, declared in option_fields(options).items():
            assert declared.stage in STAGES, name
            assert declared.help.endswith("."), name


def test_functions_and_studies_have_the_declared_options() -> None:
    declared = {field.name for field in fields(AnalysisOptions)}
    assert set(inspect.signature(td.analyze).parameters) == declared
    assert {field.name for field in fields(StepOptions)} <= {field.name for field in fields(Study)}


def test_functions_document_the_declared_options() -> None:
    parameters = inspect.signature(td.analyze).parameters
    assert all(f"{name} : " in str(td.analyze.__doc__) for name in parameters)
    assert "{" not in str(td.analyze.__doc__).replace('{"', "")
    keyword_only = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert list(parameters)[:2] == ["model", "plan"] and len(keyword_only) == len(parameters) - 2


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'bach'"):
        td.analyze("zoo:mlp", bach=1, system="a100")  # type: ignore[call-arg]


def test_a_new_field_is_an_option_of_commands() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, MoreOptions)
    assert "at most 50 % of them" in parser.format_help()
    assert read_fields(parser.parse_args(["--streams", "4"]), MoreOptions)["streams"] == 4
    assert "streams" not in read_fields(parser.parse_args([]), MoreOptions)
    with pytest.raises(UsageError, match='DIST0152 --streams: "four" is not a positive integer'):
        read_fields(parser.parse_args(["--streams", "four"]), MoreOptions)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--mesh", "dp=2,tp=4", "--dim", "a=1", "--dim", "b=2"],
        ["--train", "--no-master", "--freeze", "wte.*", "--freeze", "wpe.*"],
        ["--bucket-bytes", "unit", "--overlap-optimizer"],
        ["--allocator", "pytorch", "--advice", "bounds"],
    ],
)
def test_options_are_spelled_as_they_were_read(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, AnalysisOptions)
    arguments = parser.parse_args(words)
    declared = [
        *option_fields(AnalysisOptions).values(),
        *option_fields(TrainingOptions).values(),
    ]
    spelled = [word for item in declared for word in item.words(getattr(arguments, item.key))]
    assert sorted(spelled) == sorted(words)

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Strategies by name: the text form, the registry, and merging axis by axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from tvm_distir.core.ir.mesh import device_mesh
from tvm_distir.core.ir.placement import R as WHOLE
from tvm_distir.core.plan.plan import Plan
from tvm_distir.core.plan.schema import MeshSpec, PlanRule
from tvm_distir.interface.command import main
from tvm_distir.planning import strategies as strategy
from tvm_distir.planning.strategies.registry import WORDS, StrategySpec, parse
from tvm_distir.support.errors.tree import DependencyError, DistIRError, MeshError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    Install = Callable[[str, str, str], object]

MESH = MeshSpec("mesh0", {"dp": 2, "tp": 4})


@I.ir_module
class Linear:
    @R.function
    def main(x: R.Tensor((8, 4), "float32"), w: R.Tensor((4, 12), "float32")) -> R.Tensor(
        (8, 12), "float32"
    ):
        y = R.matmul(x, w)
        return y


COLUMNS = """
from tvm_distir.core.plan import MeshSpec, Plan, PlanRule
from tvm_distir.planning.strategies import plan_maker

@plan_maker
def columns(mod: object, mesh: MeshSpec, axis: str = "tp", parts: int = 2) -> Plan:
    labels = tuple(1 if name == axis else None for name in mesh.axes)
    return Plan((mesh,), (PlanRule("param", "w", labels), PlanRule("value", "y", labels)))

def no_strategy(mod, mesh):
    return None
"""


@pytest.fixture
def columns(install: Install) -> None:
    """A strategy of another package, installed for one test."""
    points = "[tvm_distir.strategies]\ncolumns = dist_c:columns\nnone = dist_c:no_strategy\n"
    install("dist_c", COLUMNS, points)


def test_texts_are_read() -> None:
    assert parse("data_parallel") == (StrategySpec("data_parallel", {}),)
    assert parse("data_parallel + megatron:axis=x, sequence=1") == (
        StrategySpec("data_parallel"),
        StrategySpec("megatron", {"axis": "x", "sequence": True}),
    )
    assert parse("megatron:sequence=off")[0].options == {"sequence": False}


@pytest.mark.parametrize(
    ("text", "code", "remedy"),
    [
        ("dataparallel", "DIST0230", 'Did you mean "data_parallel"'),
        ("data_parallel+megatrn", "DIST0230", 'Did you mean "megatron"'),
        ("", "DIST0235", "NAME"),
        ("data_parallel+", "DIST0235", "NAME"),
        ("megatron:", "DIST0235", "NAME"),
        ("megatron:axis", "DIST0235", "commas"),
        ("megatron:=tp", "DIST0235", "commas"),
        ("megatron:axis=tp,axis=dp", "DIST0235", "Remove"),
        ("megatron:axes=tp", "DIST0231", 'Did you mean "axis"'),
        ("megatron:sequence=2", "DIST0231", "default"),
        ("megatron:axis=", "DIST0231", "default"),
    ],
)
def test_wrong_texts_are_refused(text: str, code: str, remedy: str) -> None:
    with pytest.raises(PlanError) as info:
        parse(text)
    assert info.value.code == code
    assert remedy in info.value.remedy
    assert info.value.location


@pytest.mark.parametrize("word", sorted(WORDS))
def test_words_of_other_libraries_point_to_strategies(word: str) -> None:
    """In any spelling of theirs; what the remedy names is read."""
    with pytest.raises(PlanError) as info:
        parse(word.upper().replace("_", "-"))
    assert info.value.code == "DIST0230"
    assert info.value.remedy == f"Write {' or '.join(WORDS[word])}."
    for text in WORDS[word]:
        assert parse(text)


def test_a_users_strategy_composes_with_the_built_in_ones(columns: object) -> None:
    """Whether a weight is stationary is for those to say that cut it."""
    plan = strategy.compose(Linear, MESH, "data_parallel:axis=dp+columns:parts=3")
    assert plan.meshes == (MESH,)
    assert plan.rules == (
        PlanRule("param", "x", (0, WHOLE)),
        PlanRule("param", "w", (WHOLE, 1), stationary=False),
        PlanRule("value", "y", (None, 1)),
    )
    with pytest.raises(PlanError, match=r"DIST0231.*parts=a"):
        parse("columns:parts=a")


def test_axes_that_nobody_fills_are_closed_for_parameters_only(columns: object) -> None:
    mesh = MeshSpec("mesh0", {"dp": 2, "tp": 4, "idle": 3})
    plan = strategy.compose(Linear, mesh, [StrategySpec("columns")])
    assert plan.rules == (
        PlanRule("param", "w", (WHOLE, 1, WHOLE)),
        PlanRule("value", "y", (None, 1, None)),
    )


def test_two_strategies_on_one_axis_contradict(columns: object) -> None:
    with pytest.raises(PlanError) as info:
        strategy.compose(Linear, MESH, "data_parallel:axis=tp+columns")
    assert info.value.code == "DIST0232"
    assert '"data_parallel" requires "R", "columns" requires "S[1]"' in info.value.what
    with pytest.raises(PlanError) as info:
        both = "data_parallel:axis=tp+columns+data_parallel:axis=dp+columns:axis=dp"
        strategy.compose(Linear, MESH, both)
    assert [(v.code, v.location) for v in info.value.violations] == [("DIST0232", 'param "w"')] * 2
    assert [
        'axis "tp"' in info.value.violations[0].what,
        'axis "dp"' in info.value.violations[1].what,
    ]
    agreeing = strategy.compose(Linear, MESH, "columns+columns")
    assert agreeing.rules[0].placement == (WHOLE, 1)


def test_plans_for_different_meshes_do_not_merge() -> None:
    single = Plan((MESH,), ())
    other = Plan((MeshSpec("mesh0", {"dp": 2}),), ())
    with pytest.raises(PlanError, match="DIST0232"):
        strategy.merge([("a", single), ("b", other)])


def test_registering_is_checked(columns: object) -> None:
    with pytest.raises(DependencyError, match=r"DIST0114.*plan_maker"):
        strategy.find_strategy("none")
    with pytest.raises(PlanError, match="DIST0231"):
        strategy.plan_maker(lambda mod, mesh, axis: Plan((mesh,), ()))
    with pytest.raises(PlanError, match="DIST0231"):
        strategy.plan_maker(lambda mod, mesh, axis=object(): Plan((mesh,), ()))
    assert strategy.strategy_names()[-2:] == ("columns", "none")


def test_a_strategy_says_what_its_options_are() -> None:
    for name in strategy.strategy_names():
        info = strategy.find_strategy(name)
        assert info.summary and info.function is getattr(strategy, name)
        assert ("axis" in info.options) == (name != "complete")  # which fills none
        assert not {"before", "others"} & set(info.options)
        assert all(option.help for option in info.options.values()), name
    assert strategy.find_strategy("zero").looks_at == "others"
    assert strategy.find_strategy("tensor_parallel").looks_at == "before"
    assert strategy.find_strategy("megatron").looks_at is None


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: strategy.compose(Linear, {"dp": 2}, []), "DIST0235"),
        (lambda: strategy.compose(Linear, {}, "data_parallel"), "DIST0201"),
        (lambda: strategy.compose(Linear, {"x": 2}, "data_parallel"), "DIST0206"),
        (lambda: strategy.make_plan(Linear, "data_parallel:axis=pp", {"dp": 2}), "DIST0206"),
        (lambda: strategy.compose(Linear, {"dp": 2}, [StrategySpec("nothing")]), "DIST0230"),
    ],
)
def test_wrong_meshes_and_axes_are_refused(call: object, code: str) -> None:
    with pytest.raises(DistIRError) as info:
        call()  # type: ignore[operator]
    assert info.value.code == code
    assert info.value.remedy


def test_a_missing_axis_says_how_to_name_another() -> None:
    with pytest.raises(MeshError) as info:
        strategy.data_parallel(Linear, {"batch": 2})
    assert "data_parallel:axis=NAME" in info.value.remedy


def test_a_mesh_may_be_given_in_tvms_form() -> None:
    plan = strategy.data_parallel(Linear, device_mesh({"dp": 2}, start=4), axis="0")
    assert plan.meshes == (MeshSpec("mesh0", {"0": 2}, start=4),)
    plan = strategy.data_parallel(Linear, device_mesh({"dp": 2}, device_ids=[5, 1]), axis="0")
    assert plan.meshes[0].device_ids == (5, 1)


def test_the_command_line_lists_the_strategies(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """With their options, under ``--help-strategies`` of every command that takes one."""
    install("dist_c", COLUMNS, "[tvm_distir.strategies]\ncolumns = dist_c:columns\n")
    assert main(["analyze", "--help-strategies"]) == 0
    listed = capsys.readouterr().out
    names = strategy.strategy_names()
    assert "zero" in names and "columns" in names
    assert [name for name in names if f"\n{name}\n" not in f"\n{listed}"] == []

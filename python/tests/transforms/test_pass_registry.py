# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Passes by name: what each says of itself is true, and texts of passes read back."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_distir as td
from tvm_distir import transforms as transform
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.analysis.names import LEVELS
from tvm_distir.core.passes.declaration import info_of, module_pass
from tvm_distir.core.plan.schema import MeshSpec
from tvm_distir.core.propagation.solve.cost import Costs
from tvm_distir.models import LowerToCCL
from tvm_distir.performance import ExportProgram
from tvm_distir.planning.strategies.composition import compose
from tvm_distir.support.errors.tree import DependencyError, HardwareError, UsageError
from tvm_distir.transforms.optimize.passes import NAMES
from tvm_distir.transforms.registry import PIPELINE, find_pass, pass_names
from tvm_distir.transforms.spec import PassSpec, levels_after, parse_passes


@I.ir_module
class Flat:
    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        a: R.Tensor((16, 32), "float32"),
        b: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            lv = R.matmul(x, a)
            lv1 = R.nn.relu(lv)
            lv2 = R.matmul(lv1, b)
            R.output(lv2)
        return lv2


@pytest.fixture(scope="module")
def plan() -> td.Plan:
    return compose(Flat, MeshSpec("mesh0", {"dp": 2, "tp": 2}), "data_parallel+tensor_parallel")


@pytest.fixture(scope="module")
def at_level(plan: td.Plan) -> dict[str, tvm.IRModule]:
    """A module of each level."""
    matches = {"global": Flat}
    for spec in parse_passes("annotate,propagate,legalize,lower"):
        matches[spec.info.gives] = spec.make(plan=plan)(matches[spec.info.takes[0]])
    return matches


def test_every_exported_factory_has_a_name() -> None:
    """The public names and the table are the same passes."""
    exported = {
        name
        for name in transform.__all__
        if inspect.isfunction(getattr(transform, name)) and name[0].isupper()
    }
    exported |= {ExportProgram.__name__, LowerToCCL.__name__}  # of later wings
    assert {find_pass(name).factory.__name__ for name in pass_names()} == exported
    assert set(NAMES) <= set(pass_names()) and set(PIPELINE) <= set(pass_names())


@pytest.mark.parametrize("name", pass_names())
def test_a_pass_does_what_its_levels_say(
    name: str, at_level: dict[str, tvm.IRModule], plan: td.Plan
) -> None:
    info = find_pass(name)
    assert info.takes and set(info.takes) <= set(LEVELS.values())
    created = PassSpec(name).make(plan=plan, output=repr, emulate=True)
    assert isinstance(created, tvm.ir.transform.Pass)
    assert created.info.name == f"tvm_distir.{info.factory.__name__}"
    for level in info.takes:
        check_level(created(at_level[level]), info.gives or level)


@pytest.mark.parametrize("name", pass_names())
def test_every_option_is_explained_and_reads_back(name: str) -> None:
    info = find_pass(name)
    assert info.summary and not info.summary.startswith("Pass that")
    assert list(info.options) == list(inspect.signature(info.factory).parameters)
    for option in info.options.values():
        assert option.help, f"{name}: the docstring does not say what {option.name} is"
        if option.default_text:
            ((spec),) = parse_passes(f"{name}{{{option.name}={option.default_text}}}")
            assert parse_passes(str(spec)) == (spec,)
            assert option.make(spec.options[option.name]) in (
                option.default,
                option.make(option.default),
            )


def test_a_text_of_passes_reads_back() -> None:
    text = (
        "annotate{plan=a/b.json},propagate{costs={wire=512,flop=8},memory_bytes=1024},"
        "legalize{system=dgx-h100,memory_bound=none},optimize{without=[share,fuse]},"
        'lower,bucket{bucket_bytes=26214400},outline{functions=["a b",main]}'
    )
    specs = parse_passes(text)
    assert ",".join(map(str, specs)) == text
    assert parse_passes(",".join(map(str, specs))) == specs
    assert specs[1].options == {"costs": {"wire": 512, "flop": 8}, "memory_bytes": 1024}
    assert specs[2].options == {"system": "dgx-h100", "memory_bound": None}


def test_options_of_the_text_are_those_of_the_factory(at_level: dict[str, tvm.IRModule]) -> None:
    annotated, legalized = at_level["annotated"], at_level["legalized"]
    for text, factory, mod in (
        (
            "propagate{costs={wire=1,launch=1048576}}",
            transform.PropagateSharding(Costs(wire=1, launch=1048576)),
            annotated,
        ),
        (
            "optimize{without=[fuse,share]}",
            transform.OptimizeCollectives(without=["fuse", "share"]),
            legalized,
        ),
    ):
        (spec,) = parse_passes(text)
        assert tvm_ffi.structural_equal(spec.make()(mod), factory(mod))


def test_an_option_reaches_the_pass() -> None:
    bucket = find_pass("bucket").factory
    seen = []

    @module_pass("local")
    def Seen(bucket_bytes: int = 1, system: td.System | str = "dgx-a100", loud: bool = False):
        """Note the options."""
        seen.append((bucket_bytes, system, loud))
        return lambda mod: mod

    info = info_of(Seen)
    assert info is not None and info.factory is Seen is not bucket
    info.make("seen", {"bucket_bytes": 7, "system": "dgx-h100"}, {"loud": True, "plan": None})
    assert seen == [(7, td.System.load("dgx-h100"), True)]


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("bukket", 'no pass "bukket"', 'Did you mean "bucket"?'),
        ("bucket{bucket_byte=1}", 'no option "bucket_byte"', 'Did you mean "bucket_bytes"?'),
        ("bucket{bucket_bytes=x}", "is not an integer", "Its default is 26214400."),
        ("propagate{complete=maybe}", "is not true or false", "Its default is false."),
        ("legalize{memory_bound=x}", "is not a number or none", "Its default is 1.0."),
        ("optimize{without=share}", "is not a list in brackets, each a text", ""),
        ("propagate{costs={wir=1}}", "is not costs in braces", 'Did you mean "wire"?'),
        ("annotate{plan=[]}", "is not the name or file of a plan", "Give the name or file"),
        ("split{times=1}", 'no option "times"', ""),
        ("bucket{bucket_bytes=" + "9" * 5000 + "}", "...", "Its default"),
    ],
)
def test_a_wrong_text_names_the_nearest_and_the_type(text: str, what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_passes(text, "-p")
    assert (caught.value.code, caught.value.location) == ("DIST0152", "-p")
    assert what in caught.value.what and remedy in caught.value.remedy
    assert len(str(caught.value)) < 400 and caught.value.exit_code == 2


def test_what_cannot_be_made_says_why() -> None:
    with pytest.raises(UsageError, match=r'DIST0151.*"plan" of annotate is missing'):
        PassSpec("annotate").make()
    with pytest.raises(HardwareError, match=r"DIST0701.*dgx-h100"):
        PassSpec("schedule", {"system": "dgx-h10"}).make()
    with pytest.raises(UsageError, match=r'DIST0152.*no level "locale"'):
        module_pass("locale")


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("outline", [None]),
        ("annotate,propagate", ["annotated", "distributed"]),
        ("annotate,outline,annotate", ["annotated", "annotated", "annotated"]),
        ("outline,propagate", [None, "distributed"]),
        ("share,fuse,lower,inline,bucket", ["legalized", "legalized", "local", "local", "local"]),
        ("lower,bucket,split,schedule", ["local"] * 4),
    ],
)
def test_levels_after_passes(text: str, levels: list[str | None]) -> None:
    assert levels_after(parse_passes(text)) == levels


@pytest.mark.parametrize(
    "text", ["annotate,legalize", "lower,annotate", "propagate,outline", "bucket,share"]
)
def test_an_order_that_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"DIST0151") as caught:
        levels_after(parse_passes(text), "-p")
    assert text.partition(",")[2] in caught.value.what


def test_a_package_adds_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_level: dict[str, tvm.IRModule]
) -> None:
    (tmp_path / "added_passes.py").write_text(
        "from tvm_distir.transforms import module_pass\n\n"
        '@module_pass("local")\n'
        "def MarkModule(text: str = 'x'):\n"
        '    """Write a text into the module\'s attributes."""\n'
        "    return lambda mod: mod.with_attr('mark', text)\n\n"
        "def NoPass():\n    return None\n"
    )
    info = tmp_path / "added-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tvm_distir.passes]\nmark = added_passes:MarkModule\nnone = added_passes:NoPass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        (spec,) = parse_passes("mark{text=planted}")
        assert pass_names()[-2:] == ("mark", "none")
        created = spec.make()
        assert created.info.name == "added_passes.MarkModule"
        assert created(at_level["local"]).attrs["mark"] == "planted"
        with pytest.raises(DependencyError, match=r"DIST0114.*module_pass"):
            find_pass("none")
        with pytest.raises(UsageError, match=r'Did you mean "text"'):
            parse_passes("mark{texts=1}")
    finally:
        sys.modules.pop("added_passes", None)

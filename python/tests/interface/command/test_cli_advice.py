# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``analyze`` simulates the changes that it advises, and drops what does not gain."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.plain_systems import PLAIN_A100
from tvm_distir.interface import advice
from tvm_distir.interface.advice_changes import changes_of
from tvm_distir.interface.command import main
from tvm_distir.performance import Profile, profile_names

MLP = ["analyze", "zoo:mlp?layers=2", "--system", PLAIN_A100]
TWO = [*MLP, "--strategy", "tensor_parallel", "--mesh", "tp=2"]


def analysed(words, capsys, code=0):
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_gains_are_those_of_the_changed_command(capsys):
    result = analysed(TWO, capsys)
    trials = [trial for each in result["advice"] for trial in each["gains"]]
    data = next(t for t in trials if t["change"] == "--strategy data_parallel --mesh dp=2")
    again = analysed([*MLP, *data["change"].split(), "--advice", "bounds"], capsys)
    assert data["time_s"] == again["time_s"] and data["fits"]
    assert data["gain"] == pytest.approx(result["time_s"] / again["time_s"])
    assert data["peak_memory_bytes"] == again["peak_memory_bytes"]
    assert all(t["gain"] >= 1.02 for t in trials)
    without = [trial for each in result["advice"] for trial in each["others"]]
    assert without and all(t["gain"] < 1.02 for t in without)


MEMORY = ["analyze", "zoo:gpt?size=tiny", "--system", PLAIN_A100, "--strategy", "data_parallel",
          "--mesh", "dp=2"]  # fmt: skip


def test_kernels_that_are_advised_are_an_option(capsys):
    result = analysed(MEMORY, capsys)
    trials = [t for each in result["advice"] for t in (*each["gains"], *each["others"])]
    (kernels,) = (t for t in trials if "kernels" in t["change"])
    again = analysed([*MEMORY, *kernels["change"].split(), "--advice", "bounds"], capsys)
    assert kernels["time_s"] == again["time_s"] < result["time_s"]
    assert main([*MEMORY, "--kernels", "nope"]) == 2
    assert "DIST0701 --kernels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "kernels", "tried"),
    [
        ("zoo:gpt?size=tiny,layers=1 --train", "fused", {"fused-graphs"}),
        ("zoo:gpt?size=tiny,layers=1", "fused", {"fused-graphs"}),
        ("zoo:gpt?size=tiny,layers=1,entry=serve", "fused", {"fused-graphs", "serving"}),
        ("zoo:gpt?size=tiny,layers=1,entry=serve", "serving", set()),
        ("zoo:gpt?size=tiny,layers=1", "fused-fp8", set()),
    ],
)
def test_kernels_that_are_advised_are_of_the_same_use(model, kernels, tried, capsys, monkeypatch):
    simulated = set()
    simulate = advice._simulated

    def noting(study, system, profile):
        simulated.add(getattr(profile, "name", kernels))
        return simulate(study, system, profile)

    monkeypatch.setattr(advice, "_simulated", noting)
    words = f"analyze {model} --strategy megatron --mesh tp=2 --system h100 --kernels {kernels}"
    result = analysed(words.split(), capsys)
    names = [t["change"] for each in result["advice"] for t in (*each["gains"], *each["others"])]
    named = {name.split()[1] for name in names if name.startswith("--kernels")}
    assert simulated - {kernels} == tried and named <= tried and bool(named) == bool(tried)


def test_kernels_that_are_advised_compute_the_same():
    for name in profile_names():
        for other in map(Profile.load, Profile.load(name).alternatives):
            assert other.name != name and other.quantization is None and not other.changes_nothing


@pytest.mark.parametrize("given", [TWO, MEMORY])
def test_options_that_are_advised_are_there(given, capsys):
    """Every option in the words of a change is one of the command."""
    result = analysed([*given, "--advice", "full"], capsys)
    changes = [t["change"] for each in result["advice"] for t in (*each["gains"], *each["others"])]
    assert main(["analyze", "--help-all"]) == 0
    there = capsys.readouterr().out
    assert changes
    for change in changes:
        options = [word for word in change.split() if word.startswith("--")]
        assert options and all(f"{option} " in there for option in options), change


def test_more_samples_per_step_are_told_as_throughput(capsys):
    result = analysed([*MEMORY, "--advice", "full"], capsys)
    gains = [t for each in result["advice"] for t in each["gains"] if t["samples"] == 2]
    assert gains
    assert main([*MEMORY, "--advice", "full"]) == 0
    message = capsys.readouterr().out
    number = r"([\d.]+)([kM]?)"
    scale = {"": 1.0, "k": 1e3, "M": 1e6}
    for trial in gains:
        line = next(t for t in message.splitlines() if t.strip().startswith(trial["change"] + ":"))
        pattern = rf"throughput {number} -> {number} samples/s; 2x samples per step: "
        before, unit, after, other = re.search(pattern, line).groups()
        ratio = float(after) * scale[other] / (float(before) * scale[unit])
        assert ratio == pytest.approx(trial["gain"], rel=0.02)


def test_text_says_what_was_tried(capsys):
    assert main(TWO) == 0
    message = capsys.readouterr().out
    assert "--strategy data_parallel --mesh dp=2: predicted speedup " in message
    assert "(bound: communication fully overlapped)" in message
    assert "Tried without gain: --system with twice the link bandwidth" in message


def test_bounds_alone(capsys):
    result = analysed([*TWO, "--advice", "bounds"], capsys)
    assert all(each["formula"] and not each["gains"] + each["others"] for each in result["advice"])


def test_quick_leaves_some_to_full(capsys):
    quick, full = (analysed([*TWO, "--advice", how], capsys) for how in ("quick", "full"))
    counts = [
        [sum(len(each[key]) for each in result["advice"]) for key in ("gains", "others", "untried")]
        for result in (quick, full)
    ]
    assert counts[0][2] > 0 == counts[1][2]
    assert sum(counts[0]) >= sum(counts[1])  # what is refused is no advice


def test_what_makes_a_step_fit_is_simulated(tmp_path, capsys):
    data = Path(PLAIN_A100)
    small = json.loads(data.read_text(encoding="utf-8"))
    small["device"]["memory_capacity_GiB"] = 0.03
    path = tmp_path / "small.json"
    path.write_text(json.dumps(small))
    words = "--train --optimizer adam --strategy data_parallel --mesh dp=4".split()
    inputs = ["analyze", "zoo:mlp?layers=2", *words, "--system", str(path)]
    assert main([*inputs, "--json"]) == 3
    message = capsys.readouterr()
    result = json.loads(message.out)
    (fit,) = (each for each in result["advice"] if each["part"] == "fit")
    (gain,) = fit["gains"]
    assert gain["change"].startswith("--strategy zero:stage=") and gain["fits"]
    assert all(trial["fits"] is False for trial in fit["others"])
    assert f"[{gain['change']} makes it fit: " in message.err


def test_more_micro_batches_of_a_fixed_batch_are_more_samples(tmp_path, capsys):
    path = str(tmp_path / "mlp.py")
    assert main(["convert", "zoo:mlp?layers=4", path]) == 0
    stages = ["--strategy", "pipeline:micro_batches=2", "--mesh", "pp=2", "--advice", "full"]
    result = analysed(["analyze", path, "--system", PLAIN_A100, "--train", *stages], capsys)
    trials = [t for each in result["advice"] for t in (*each["gains"], *each["others"])]
    (more,) = (t for t in trials if t["change"] == "--strategy pipeline:micro_batches=4")
    assert more["samples"] == 2 and more["gain"] > 1  # each is a batch as the file has it
    assert more["gain"] == pytest.approx(2 * result["time_s"] / more["time_s"])


def test_no_way_of_judging(capsys):
    assert main([*TWO, "--advice", "all"]) == 2
    assert 'DIST0152 --advice: there is no advice mode "all"' in capsys.readouterr().err


@pytest.mark.parametrize(("batch", "advised"), [(2, []), (4, ["--mesh dp=4,tp=2"])])
def test_no_mesh_is_advised_that_the_batch_forbids(batch, advised):
    tokens = SimpleNamespace(shape=(batch, 8), placement="S[0], R")
    analysis = SimpleNamespace(
        batch=batch, meshes=[None], parameters=[tokens], spent_s={"compute": 1.0}, fits=True,
        pipeline=None,
    )  # fmt: skip
    study = SimpleNamespace(
        strategy="data_parallel+megatron", mesh={"dp": 2, "tp": 2}, recompute=None, train=None
    )
    changes = changes_of(study, analysis)
    assert [change.words for change in changes] == advised


@pytest.mark.parametrize(
    ("optimizer", "lighter"),
    [("adamw", "adamw8bit"), ("adamw:rate=0.01", "adamw8bit:rate=0.01"), ("sgd", "")],
)
def test_adamw_of_8_bits_is_tried_where_memory_is_exceeded(optimizer, lighter, tmp_path, capsys):
    """Its memory is that of the command, and less; sgd has no states of 8 bits."""
    small = json.loads(Path(PLAIN_A100).read_text(encoding="utf-8"))
    small["device"]["memory_capacity_GiB"] = 0.001
    path = tmp_path / "small.json"
    path.write_text(json.dumps(small))
    words = ["analyze", "zoo:mlp?layers=2", "--strategy", "data_parallel", "--mesh", "dp=2",
             "--train", "--system", str(path), "--advice"]  # fmt: skip
    result = analysed([*words, "full", "--optimizer", optimizer], capsys, code=3)
    trials = [t for each in result["advice"] for t in (*each["gains"], *each["others"])]
    tried = {t["change"]: t["peak_memory_bytes"] for t in trials}
    found = [change for change in tried if "--optimizer" in change]
    assert found == ([f"--optimizer {lighter}"] if lighter else [])
    for change in found:
        again = analysed([*words, "bounds", *change.split()], capsys, code=3)
        assert tried[change] == again["peak_memory_bytes"] < result["peak_memory_bytes"]

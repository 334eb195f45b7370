# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The commands from end to end on small models."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

from tests.interface.command.cli_inputs import write_inputs
from tvm_distir.core.analysis.levels import check_level
from tvm_distir.core.collectives.volume import sent_bytes
from tvm_distir.interface.command import main
from tvm_distir.interface.command.terminal import wants_colour
from tvm_distir.models.tvmscript import from_tvmscript
from tvm_distir.support.config.record import RECORD

PLAN = ["--plan", "plan.json", "--system", "dgx-a100"]
STAGES = ("load", "plan", "annotate", "propagate", "order", "legalize", "optimize", "lower")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the input files, entered."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stdout_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must succeed, and give what it printed."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def json_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The same for a command that prints JSON."""
    return dict(json.loads(stdout_of([*arguments, "--json"], capsys)))


def test_analyze_gives_the_contract(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json_of(["analyze", "mlp.py", *PLAN], capsys)
    assert data["schema_version"] == 1 and data["time_s"] > 0 and data["unmodelled_ops"] == []
    assert [d["id"] for d in data["devices"]] == [0, 1, 2, 3]
    # Two calls of the MLP; each device does a matmul of 4x16x16 and one of 4x16x16.
    for device in data["devices"]:
        assert device["flops"] >= 2 * 2 * (2 * 4 * 16 * 16)
        busy = device["compute_s"] + device["exposed_comm_s"] + device["idle_s"]
        assert busy == pytest.approx(data["time_s"], rel=1e-6)
        # x: 4x16, a: 16x16, b: 16x16 of float32.
        assert device["param_bytes"] in (4 * (16 * 16 * 2), 4 * (16 * 16 * 2 + 4 * 16))
        assert device["peak_memory_bytes"] >= device["param_bytes"]
    (single,) = data["collectives"]
    result = 4 * 4 * 16
    assert single["kind"] == "all_reduce" and single["mesh_axis"] == "tp"
    assert (single["group_size"], single["count"]) == (2, 2)
    assert single["bytes_per_device"] == 2 * result
    assert single["wire_bytes_per_device"] == 2 * sent_bytes("all_reduce", result, 2)
    assert set(data["timings_s"]) >= {*STAGES, "export", "simulate"}
    assert all(took_s >= 0 for took_s in data["timings_s"].values())


def test_analyze_writes_everything_into_a_folder(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json_of(["analyze", "mlp.py", *PLAN, "-o", "out", "--trace", "t.json"], capsys)
    levels = ["global", "annotated", "distributed", "legalized", "local"]
    scripts = [f"{i + 1}-{level}.py" for i, level in enumerate(levels)]
    others = [RECORD, "analysis.json", "analysis.txt", "plan.json", "program.json", "report.html"]
    assert sorted(p.name for p in (work / "out").iterdir()) == sorted(scripts + others)
    for name, level in zip(scripts, levels):
        mod = from_tvmscript(work / "out" / name)
        check_level(mod, level)
        again = from_tvmscript(mod.script(show_meta=True))
        assert tvm_ffi.structural_equal(mod, again)
    assert json.loads((work / "out" / "analysis.json").read_text())["time_s"] == data["time_s"]
    assert json.loads((work / "t.json").read_text())
    # What was written can be used again, with the same outcome.
    simulated = json_of(["simulate", "out/program.json", "--system", "dgx-a100"], capsys)
    for key in ("time_s", "peak_memory_bytes", "devices", "collectives"):
        assert simulated[key] == data[key]
    again = json_of(["analyze", "mlp.py", "--plan", "out/plan.json", *PLAN[2:]], capsys)
    assert again["time_s"] == data["time_s"] and again["collectives"] == data["collectives"]


def test_two_runs_write_the_same_bytes(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("one", "two"):
        stdout_of(["analyze", "mlp.py", *PLAN, "-o", folder], capsys)
    for path in sorted((work / "one").iterdir()):
        # Wall-clock times stand in these, and their digests in the record.
        if not path.name.startswith("analysis.") and path.name != RECORD:
            assert path.read_bytes() == (work / "two" / path.name).read_bytes(), path.name


def test_a_mesh_that_the_plan_has_too_may_be_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = stdout_of(["analyze", "mlp.py", *PLAN, "--mesh", "dp=2,tp=2"], capsys)
    assert "dp=2, tp=2 (4 devices)" in text and "all_reduce" in text


@pytest.mark.parametrize("model", ["mlp.onnx", "zoo:gpt?size=tiny"])
def test_analyze_with_a_strategy(
    model: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--strategy", "data_parallel", "--mesh", "dp=4", "--system", "dgx-a100"]
    data = json_of(["analyze", model, "--batch", "16", *words, "--report", "r.html"], capsys)
    assert data["collectives"] == [] and len(data["devices"]) == 4 and data["batch"] == 16
    page = (work / "r.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "data_parallel" in page


def test_verify_exact(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["verify", "mlp.py", "--plan", "plan.json", "--engine", "virtual", "--exact"]
    data = json_of(words, capsys)
    assert data["schema_version"] == 1 and data["equal"] is True and data["exact"] is True
    assert data["max_abs_diff"] == data["max_rel_diff"] == 0
    assert [(c["kind"], c["mesh_axis"], c["count"]) for c in data["collectives"]] == [
        ("all_reduce", "tp", 2)
    ]
    assert {"atol", "rtol", "timings_s", "model"} <= set(data)


def test_verify_with_the_weights_of_the_file(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--strategy", "data_parallel", "--mesh", "dp=2", "--engine", "virtual"]
    text = stdout_of(["verify", "mlp.onnx", *words, "--seed", "7"], capsys)
    assert text.startswith("EQUAL within the tolerance: mlp.onnx on the engine virtual, seed 7")


def test_a_difference_exits_70(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tvm_distir.execution.runtime.engines.virtual.engine import VirtualEngine

    right = VirtualEngine.run_local

    def broken(self: VirtualEngine, program: Any, local: Any) -> Any:
        result = right(self, program, local)
        return {rank: [value + 1 for value in results] for rank, results in result.items()}

    monkeypatch.setattr(VirtualEngine, "run_local", broken)
    words = ["verify", "mlp.py", "--plan", "plan.json", "--engine", "virtual", "--json"]
    assert main(words) == 70
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["equal"] is False and data["max_abs_diff"] == pytest.approx(1.0, rel=1e-3)
    assert err.startswith("DIST0690 mlp/lv (matmul): the first value that differs ")
    assert "output 0 by up to 1 " in err and len(err.splitlines()) == 1


def test_opt_runs_passes_in_order(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passes = "annotate,propagate,legalize,optimize,lower"
    words = ["opt", "-p", passes, "--plan", "plan.json", "mlp.py", "--verify-each"]
    assert main([*words, "--print-after-all", "--time-passes"]) == 0
    out, err = capsys.readouterr()
    mod = from_tvmscript(out)
    check_level(mod, "local")
    assert [line for line in err.splitlines() if line.startswith("# after")] == [
        f"# after {name}" for name in passes.split(",")
    ]
    for name in ["read", *passes.split(",")]:
        assert any(line.endswith(f"s  {name}") for line in err.splitlines())


def test_opt_in_two_steps_is_opt_in_one(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = stdout_of(
        ["opt", "-p", "annotate,propagate,legalize", "--plan", "plan.json", "mlp.py"], capsys
    )
    first = ["opt", "-p", "annotate", "--plan", "plan.json", "mlp.py", "-o", "half.py"]
    assert stdout_of(first, capsys) == ""
    rest = stdout_of(["opt", "-p", "propagate,legalize", "half.py"], capsys)
    assert tvm_ffi.structural_equal(from_tvmscript(rest), from_tvmscript(whole))


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert wants_colour()
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not wants_colour()


def test_an_axis_that_cuts_nothing_is_told(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, in the JSON and in the report; not where every axis cuts something."""
    mesh = ["--mesh", "dp=2,tp=4,one=1", "--system", "dgx-a100", "--json", "--report", "r.html"]
    code = main(["analyze", "mlp.py", "--strategy", "data_parallel", *mesh])
    out, err = capsys.readouterr()
    message = (
        'the mesh axis "tp" of "mesh0" shards nothing: the 4 devices along it do redundant work'
    )
    assert code == 0 and f"warning: {message}\n" in err and '"dp"' not in err and '"one"' not in err
    assert json.loads(out)["warnings"][0] == message
    assert f"Warning: {message}." in html.unescape((work / "r.html").read_text(encoding="utf-8"))
    others = json_of(["analyze", "mlp.py", *PLAN], capsys)["warnings"]
    assert all("shards nothing" not in other for other in others)


def test_a_missing_extra_is_told_before_any_work(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is looked for, and not read."""
    empty = work / "empty.onnx"
    empty.write_bytes(b"")
    result = importlib.util.find_spec

    def without_mpi(name: str, package: str | None = None) -> object:
        return None if name == "mpi4py" else result(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_mpi)
    plan = ["--strategy", "data_parallel", "--mesh", "dp=2"]
    assert main(["verify", str(empty), "--engine", "mpi", *plan]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("DIST0111 engine mpi: ") and "tvm_distir[mpi]" in err


def process(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own."""
    root = str(Path(__file__).parents[4])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "tvm_distir.interface.command", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_process_results_on_stdout(work: Path) -> None:
    done = process(["analyze", "mlp.py", *PLAN, "--json", "--report", "r.html"], work)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["time_s"] > 0
    reported = done.stderr.splitlines()
    assert reported[-1] == f"wrote {work / 'r.html'}"
    assert all(line.startswith("warning: a single device is as fast") for line in reported[:-1])


def test_process_messages_on_stderr(work: Path) -> None:
    done = process(["analyze", "cut.onnx", *PLAN, "-o", "out"], work)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("DIST0303 ") and len(done.stderr.splitlines()) == 1
    assert not (work / "out").exists()


def test_process_usage(work: Path) -> None:
    done = process(["analyze", "mlp.py", "--no-such"], work)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("DIST0150 tvm-distir analyze: the following arguments are required")


def test_process_closed_pipe(work: Path) -> None:
    command = (
        f"{sys.executable} -m tvm_distir.interface.command analyze --help | head -c 1 >/dev/null"
    )
    root = str(Path(__file__).parents[4])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=work,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_opt_outlines_and_inlines(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Repeated layers go into a private function, and back."""
    layers = "".join(
        f"""        a{i} = R.matmul(b{i}, w{i})
        c{i} = R.nn.relu(a{i})
        d{i} = R.exp(c{i})
        b{i + 1} = R.add(d{i}, b{i})
"""
        for i in range(3)
    )
    weights = ", ".join(f'w{i}: R.Tensor((4, 4), "float32")' for i in range(3))
    (work / "flat.py").write_text(
        "from tvm.script import ir as I\nfrom tvm.script import relax as R\n\n\n"
        "@I.ir_module\nclass Module:\n    @R.function\n"
        f'    def main(b0: R.Tensor((4, 4), "float32"), {weights}):\n{layers}        return b3\n'
    )
    assert main(["opt", "-p", "outline", "flat.py", "-o", "outlined.py"]) == 0
    outlined = from_tvmscript(str(work / "outlined.py"))
    assert len(outlined.functions) == 2
    assert main(["opt", "-p", "inline", "outlined.py"]) == 0
    assert len(from_tvmscript(capsys.readouterr().out).functions) == 1

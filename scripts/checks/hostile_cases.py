# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The cases of ``hostile.py``, by kind; all follow from one seed."""

from __future__ import annotations

import copy
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostile_programs import CACHE, MEASURE, programs

MODEL = """\
from tvm.script import ir as I
from tvm.script import relax as R

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), a: R.Tensor((16, 32), "float32"),
             b: R.Tensor((32, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            h = R.matmul(x, a)
            r = R.nn.relu(h)
            y = R.matmul(r, b)
            R.output(y)
        return y
"""
PLAN = {
    "schema_version": 1,
    "meshes": {"m": {"axes": {"dp": 2, "tp": 2}, "start": 0}},
    "rules": [
        {"param": "x", "placement": "S[0], R", "mesh": "m", "stationary": False},
        {"param": "a", "placement": "R, S[1]", "mesh": "m", "function": "main"},
        {"value": "r", "placement": "S[0], S[1]", "mesh": "m"},
    ],
    "recompute": {},
}
SYSTEM = "--system dgx-a100"
ANALYZE = f"analyze m.py --plan plan.json {SYSTEM}"
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 10**30, 1e308, float("inf"), float("nan")),
    *("", "x" * 5000, "\x1b[31m", "\ud800", [], [[]], {}, {"": None}, [None] * 3),
)
TEXTS = (
    *("", " ", "=", "dp", "dp=", "=2", "dp=2=2", "dp=2,", ",dp=2", "dp=2,dp=2", "dp=-1", "dp=0x2"),
    *("dp=2.0", "dp=1e3", "dp=²", "dp=" + "9" * 400, "\x00", "dp=2\n", "дп=2", "dp" * 3000 + "=2"),
)


@dataclass(frozen=True)
class Case:
    """One command and what happens to it.

    ``prepare`` changes the folder first; ``outputs`` are names that may be new or other after a
    success; ``signal`` is sent ``after_s`` seconds; with ``closes`` nobody reads the results, which
    else go to ``stdout``; no file may have over ``most_bytes``. With ``program`` that is run in
    place of the command, and with ``expected`` it must come out so: ``equal``, ``refused`` (an
    error with a code), or either of both.
    """

    name: str
    words: tuple[str, ...]
    prepare: Callable[[Path], object] = lambda folder: None
    outputs: tuple[str, ...] = ()
    signal: int | None = None
    after_s: float = 0.0
    closes: bool = False
    stdout: str = ""
    most_bytes: int | None = None
    codes: tuple[int, ...] = ()
    program: Callable[[], bool] | None = None
    expected: str = ""


def write_files(folder: Path) -> None:
    """Write whole inputs: a model in three forms, a plan, a system, a program, weights, times."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    (folder / "m.py").write_text(MODEL, encoding="utf-8")
    (folder / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    draw = np.random.default_rng(0).standard_normal
    weights = {"a": draw((16, 32)).astype("f4"), "b": draw((32, 16)).astype("f4")}
    shape = numpy_helper.from_array(np.array([-1, 4, 8]), "shape")
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Reshape", ["h", "shape"], ["q"]),
        helper.make_node("Softmax", ["q"], ["p"], axis=-1),
        helper.make_node("Reshape", ["p", "back"], ["k"]),
        helper.make_node("MatMul", ["k", "b"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "m",
        [value("x", TensorProto.FLOAT, [8, 16])],
        [value("y", TensorProto.FLOAT, [8, 16])],
        [
            *(numpy_helper.from_array(w, n) for n, w in weights.items()),
            shape,
            numpy_helper.from_array(np.array([-1, 32]), "back"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "m.onnx"))
    np.savez(folder / "w.npz", **weights)

    data = Path(__file__).parents[2] / "python" / "tests" / "systems" / "plain-a100.json"
    shutil.copy(data, folder / "system.json")
    command = [
        sys.executable,
        "-m",
        "tvm_distir.interface.command",
        *shlex.split(ANALYZE),
        "-o",
        "made",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / "made" / "program.json").rename(folder / "program.json")
    for path in (folder / "made").iterdir():
        path.unlink()
    (folder / "made").rmdir()
    command = [sys.executable, "-m", "tvm_distir.interface.command", *MEASURE.split()]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def all_cases(fresh: Path, warm_s: float) -> Iterator[Case]:
    """All cases; ``warm_s``: seconds that a whole command takes."""
    draw = random.Random(16)
    yield from _bytes("onnx", fresh / "m.onnx", 40, 45, f"analyze m.onnx {_DP} {SYSTEM}", draw)
    yield from _bytes("script", fresh / "m.py", 15, 20, ANALYZE, draw)
    npz = f"deploy m.py --plan plan.json --weights w.npz -o out {SYSTEM}"
    yield from _bytes("weights", fresh / "w.npz", 6, 6, npz, draw, ("out",))
    for name, command, most in (
        ("plan", ANALYZE, 60),
        ("system", "analyze m.py --plan plan.json --system system.json", 60),
        ("program", f"simulate program.json {SYSTEM}", 60),
    ):
        yield from _fields(name, fresh / f"{name}.json", command, most, draw)
    yield from _texts()
    yield from _ignored()
    yield from _outputs(fresh)
    yield from _signals(warm_s)
    yield from _full()
    yield from _folders()
    yield from _programs()


_DP = "--strategy data_parallel --mesh dp=2"


def _bytes(
    kind: str,
    path: Path,
    cuts: int,
    flips: int,
    command: str,
    draw: random.Random,
    outputs: tuple[str, ...] = (),
) -> Iterator[Case]:
    """A file cut short, and one with bits flipped."""
    whole = path.read_bytes()
    broken = [whole[: len(whole) * i // cuts] for i in range(cuts)]
    for _ in range(flips):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 3, 20))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        broken.append(bytes(data))
    words = tuple(shlex.split(command))
    for i, data in enumerate(broken):
        write = _writer(path.name, data)
        yield Case(f"{kind}-{i:03}", words, write, outputs)


def _writer(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def _fields(kind: str, path: Path, command: str, most: int, draw: random.Random) -> Iterator[Case]:
    """A JSON file with a wrong value in each field, or without it."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    places = list(_positions(whole))
    picked = draw.sample(places, min(len(places), most // 3))
    for i in range(most):
        place = picked[i % len(picked)]
        data = copy.deepcopy(whole)
        parent = data
        for key in place[:-1]:
            parent = parent[key]
        wrong = draw.choice((*WRONG, del_))
        if wrong is del_:
            del parent[place[-1]]
        else:
            parent[place[-1]] = wrong
        text = json.dumps(data, ensure_ascii=True).encode()
        yield Case(f"{kind}-{i:03}", tuple(shlex.split(command)), _writer(path.name, text))


def del_() -> None:
    """Stands for a field that is not there."""


def _positions(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _positions(value, (*path, key))


def _texts() -> Iterator[Case]:
    """Options with texts that are none."""
    number = 0
    for option in ("--mesh", "--dim", "--batch", "--strategy", "--entry", "--system", "--plan"):
        for text in TEXTS[:: 1 if option in ("--mesh", "--dim") else 3]:
            inputs = {"--strategy": "data_parallel", "--mesh": "dp=2", "--system": "dgx-a100"}
            if option == "--plan":
                inputs = {"--system": "dgx-a100"}
            inputs[option] = text
            words = [word for pair in inputs.items() for word in pair]
            yield Case(f"text-{number:03}", ("analyze", "m.onnx", *words))
            number += 1


def _ignored() -> Iterator[Case]:
    """What would have no effect without a word: columns, quantized weights, parts of plans."""
    table, zoo = "--rows rows.csv", "zoo:gpt?size=tiny"
    experts = "export-plan zoo:mixtral?size=tiny,batch=8 --strategy expert_parallel --mesh ep=2"
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
        "quantization_config": {"quant_method": "mystery"},
    }  # fmt: skip
    texts = {
        "sweep-batch": (f"sweep {zoo} {table} {SYSTEM}", "tp,batch\n1,16\n"),
        "sweep-misspelled": (f"sweep {zoo} {table} {SYSTEM}", "tp,micro_batchs\n1,16\n"),
        "calibrate-column": ("calibrate h100 rows.csv", "m,k,n,time_us,tp\n64,64,64,3,2\n"),
        "calibrate-fraction": ("calibrate h100 rows.csv", "m,k,n,time_us\n64.5,64,64,3\n"),
        "quantized": (f"analyze config.json --strategy megatron --mesh tp=2 {SYSTEM}", ""),
        "experts-torchtitan": (f"{experts} --form torchtitan", ""),
        "experts-dtensor": (f"{experts} --form dtensor", ""),
    }
    for name, (words, text) in texts.items():
        case = tuple(shlex.split(words))
        file, data = ("rows.csv", text) if text else ("config.json", json.dumps(config))
        prepare = _writer(file, data.encode())
        yield Case(f"ignored-{name}", case, prepare, expected="refused")


def _outputs(fresh: Path) -> Iterator[Case]:
    """Outputs of each kind: inputs, links, folders, pipes, devices, names that cannot be."""
    odd = {
        "itself": "m.py",
        "the plan": "plan.json",
        "hard link": "hard",
        "link": "link",
        "dangling link": "dangling",
        "loop": "loop",
        "folder": "folder",
        "pipe": "pipe",
        "device": "/dev/full",
        "null": "/dev/null",
        "no folder": "no/such/file",
        "below a file": "m.py/file",
        "long name": "n" * 300,
        "empty": "",
        "dots": "..",
        "new": "new",
    }

    def prepare(folder: Path) -> None:
        os.link(folder / "m.py", folder / "hard")
        (folder / "link").symlink_to("m.py")
        (folder / "dangling").symlink_to("nowhere")
        (folder / "loop").symlink_to("loop")
        (folder / "folder").mkdir()
        (folder / "folder" / "kept").write_text("kept", encoding="utf-8")
        os.mkfifo(folder / "pipe")

    commands = {
        "report": f"{ANALYZE} --report",
        "trace": f"{ANALYZE} --trace",
        "folder": f"{ANALYZE} -o",
        "opt": "opt -p propagate m.py -o",
        "deploy": "deploy m.py --plan plan.json -o",
    }
    for command, words in commands.items():
        for name, path in odd.items():
            created = ("new", "nowhere", "dangling", "folder")
            created = ("new", "nowhere", "no") if command == "deploy" else created
            case = (*shlex.split(words), path)
            yield Case(f"output-{command}-{name.replace(' ', '-')}", case, prepare, created)
    for name in ("pipe", "folder", "/dev/zero", "/dev/full", "loop"):
        words = ("analyze", name, *shlex.split(f"{_DP} {SYSTEM}"))
        yield Case(f"input-{name.strip('/').replace('/', '-')}", words, prepare)
        plan = ("analyze", "m.py", "--plan", name, *shlex.split(SYSTEM))
        yield Case(f"input-plan-{name.strip('/').replace('/', '-')}", plan, prepare)


def _signals(warm_s: float) -> Iterator[Case]:
    """Signals at moments of a command, and readers that go away."""
    long = f"{ANALYZE} --report r.html --trace t.json -o made"
    created = ("r.html", "t.json", "made")
    for i in range(16):
        after_s = warm_s * (i + 0.5) / 16
        yield Case(f"signal-int-{i:02}", tuple(shlex.split(long)), outputs=created,
                   signal=signal.SIGINT, after_s=after_s)  # fmt: skip
    for i in range(8):
        yield Case(f"signal-term-{i:02}", tuple(shlex.split(long)), outputs=created,
                   signal=signal.SIGTERM, after_s=warm_s * (i + 0.5) / 8,
                   codes=(-signal.SIGTERM, 143))  # fmt: skip
    verify = tuple(shlex.split("verify m.py --plan plan.json --engine threads"))
    for i in range(8):
        yield Case(f"signal-verify-{i:02}", verify, signal=signal.SIGINT, after_s=0.15 * i)
    for i, words in enumerate((ANALYZE, f"{ANALYZE} --json", "--help", "opt -p propagate m.py")):
        yield Case(f"pipe-{i}", tuple(shlex.split(words)), closes=True)


def _full() -> Iterator[Case]:
    """Disks that are full from the start, or after some bytes."""
    for i, words in enumerate((ANALYZE, f"{ANALYZE} --json", "opt -p propagate m.py", "--version")):
        yield Case(f"full-stdout-{i}", tuple(shlex.split(words)), stdout="/dev/full")
    long = f"{ANALYZE} --report r.html --trace t.json -o made"
    for most in (0, 100, 1000, 5000, 20000):
        yield Case(f"full-{most}", tuple(shlex.split(long)), most_bytes=most,
                   outputs=("r.html", "t.json", "made"))  # fmt: skip
    deploy = "deploy m.py --plan plan.json --weights w.npz -o out"
    for most in (0, 500, 3000):
        yield Case(f"full-deploy-{most}", tuple(shlex.split(deploy)), most_bytes=most,
                   outputs=("out",))  # fmt: skip
    yield Case("full-deploy-later", tuple(shlex.split(deploy)), _large_weights, most_bytes=3 << 19,
               outputs=("out",))  # fmt: skip


def _large_weights(folder: Path) -> None:
    """Shards of 2 MiB: libraries are there when the disk is full."""
    import numpy as np

    wide = MODEL.replace("(16, 32)", "(16, 65536)").replace("(32, 16)", "(65536, 16)")
    (folder / "m.py").write_text(wide, encoding="utf-8")
    np.savez(folder / "w.npz", a=np.ones((16, 65536), "f4"), b=np.ones((65536, 16), "f4"))


def _folders() -> Iterator[Case]:
    """Folders that hold files of the user under the names that a command writes."""
    strategy = f"analyze m.onnx {_DP} {SYSTEM}"
    yield Case("folder-analyze-here", (*shlex.split(strategy), "-o", "."), expected="refused")
    for command, words in (
        ("analyze", f"{ANALYZE} --report report.html -o own"),
        ("deploy", "deploy m.py --plan plan.json --weights w.npz -o own"),
    ):
        for name in ("plan.json", "program.json", "manifest.json", "main.so"):
            writes = name in ("manifest.json", "main.so")
            if writes == (command == "deploy"):
                yield Case(f"folder-{command}-{name}", tuple(shlex.split(words)), _owner(name),
                           outputs=("report.html",), expected="refused")  # fmt: skip


def _owner(name: str) -> Callable[[Path], object]:
    def prepare(folder: Path) -> None:
        (folder / "own").mkdir()
        (folder / "own" / name).write_text('{"by": "hand"}', encoding="utf-8")

    return prepare


def _programs() -> Iterator[Case]:
    """Calls of the package; all that they write is theirs."""
    for name, expected, program in programs():
        yield Case(name, ("program", name), outputs=(CACHE, "deployed", "other"),
                   program=program, expected=expected)  # fmt: skip

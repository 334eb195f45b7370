# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Deployed folders: they run as the module does, without a compiler, and tell when broken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import tvm_distir as td
from tests.child_processes import child_environment
from tests.execution.runtime.mpi_cases import CASES, gpt
from tests.execution.runtime.test_runtime_mpi import has_mpi
from tvm_distir.core.plan.plan import Plan
from tvm_distir.execution.runtime.engines.registry import engine
from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.support.errors.tree import DependencyError, EngineError

ENGINES = ["virtual", "threads", "mpi"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A module of one matmul, deployed with its weight; and what it gives."""
    mod, (x, w) = CASES["one_mesh"]()
    folder = tmp_path_factory.mktemp("deployed") / "small"
    td.deploy(mod, folder, {"w": w})
    return folder, x, td.run(mod, [x, w], engine="virtual")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A GPT on dp 2 x tp 2, its weights from a file; and what it gives."""
    mod, inputs = gpt()
    ports = input_ports(LoweredProgram(mod).entries)
    weights = {p.name: inputs[i] for i, p in ports.items() if inputs[i].dtype.kind == "f"}
    data = [inputs[i] for i, p in ports.items() if p.name not in weights]
    place = tmp_path_factory.mktemp("gpt")
    np.savez(place / "weights.npz", **weights)
    td.deploy(mod, place / "deployed", place / "weights.npz")
    return place / "deployed", data, td.run(mod, inputs, engine="virtual"), weights


@pytest.mark.parametrize("name", ENGINES)
def test_it_runs_as_the_module_does(small, name):
    folder, x, (want,) = small
    if name == "mpi" and not has_mpi():
        pytest.skip("no MPI: the extra mpi is not installed")
    loaded = td.load(folder, check=True)
    assert [p.name for p in loaded.inputs] == ["x"]
    chosen = engine(name)
    (got,) = td.run(loaded, {"x": x}, engine=chosen)
    assert same_bits(got, want)
    assert [(c.kind, c.mesh_axis) for c in chosen.collectives] == [("all_reduce", "tp")]
    if name != "mpi":  # each run of which starts processes
        (got,) = loaded.run([x], engine=name)
        assert same_bits(got, want)


@pytest.mark.parametrize("name", ["virtual", "threads"])
def test_a_gpt_with_its_weights(model, name):
    folder, data, want, _ = model
    got = td.load(folder).run(data, engine=name)
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


def test_no_shard_is_written_twice(model):
    """Replicas share a file's entry: the folder holds each weight once (plus padding)."""
    folder, _, _, weights = model
    loaded = td.load(folder)
    contents = sum(
        a.dtype.itemsize * int(np.prod(a.shape))
        for f in folder.glob("*.safetensors")
        for a in td.open_weights(f).values()
    )
    whole = sum(w.nbytes for w in weights.values())
    assert whole <= contents < 1.05 * whole
    for rank in (0, 3):
        read = {id(w.parts[rank]) for w in loaded.stored.values()}
        assert len(read) == len(weights)


def test_two_meshes_have_a_library_each(tmp_path):
    mod, inputs = CASES["two_meshes"]()
    want = td.run(mod, inputs, engine="virtual")
    loaded = td.deploy(mod, tmp_path / "d")
    assert sorted(p.name for p in (tmp_path / "d").glob("*.so")) == [
        "main_mesh0.so",
        "main_mesh1.so",
    ]
    for name in ("virtual", "threads"):
        assert all(same_bits(a, b) for a, b in zip(loaded.run(inputs, engine=name), want))


def test_a_weight_that_two_axes_cut_unevenly(tmp_path):
    """9 columns over 2 x 2 are 3, 2, 3 and 1: blocks of 5 and 4, each cut again."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", [3, 5]), ("w", [5, 9])))
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(out)
    rules = [{"param": "w", "placement": "S[1], S[1]"}]
    plan = Plan.from_dict({"schema_version": 1, "mesh": {"a": 2, "b": 2}, "rules": rules})
    mod = td.distribute(builder.get(), plan)
    rng = np.random.default_rng(0)
    data, weight = (rng.integers(-4, 5, s).astype("float32") for s in ((3, 5), (5, 9)))
    td.deploy(mod, tmp_path / "out", {"w": weight})
    (got,) = td.load(tmp_path / "out", check=True).run([data], engine="threads")
    assert same_bits(got, data @ weight)


CHILD = """
import sys
import numpy as np
import tvm
import tvm_distir as td
from tvm.base import _RUNTIME_ONLY

assert _RUNTIME_ONLY
folder, name = sys.argv[1:]
x = np.load(folder + "/../x.npy")
(y,) = td.load(folder).run([x], engine=name)
np.save(folder + "/../y.npy", y)
assert "tvm.relax" not in sys.modules
"""


@pytest.mark.parametrize("name", ["virtual", "mpi"])
def test_the_runtime_library_is_enough(small, name):
    """Without compiler: TVM's runtime-only library, an empty path, no relax in the process."""
    folder, x, (want,) = small
    if name == "mpi" and not has_mpi():
        pytest.skip("no MPI: the extra mpi is not installed")
    np.save(folder.parent / "x.npy", x)
    environment = child_environment(TVM_USE_RUNTIME_LIB="1", PATH="")
    subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), name], check=True, env=environment, timeout=120
    )
    assert same_bits(np.load(folder.parent / "y.npy"), want)


def test_another_input_may_replace_a_weight(small):
    folder, x, _ = small
    (got,) = td.load(folder).run({"x": x, "w": np.zeros((6, 3), "float32")}, engine="virtual")
    assert not got.any()


def edited(folder, tmp_path, change):
    """A copy of a deployed folder whose manifest is changed."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    data = json.loads((copy / "manifest.json").read_text())
    change(data)
    (copy / "manifest.json").write_text(json.dumps(data))
    return copy


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema_version=2), r"schema version is 2 \[Use schema version 1"),
        (lambda d: d["built_with"].update(machine="pdp11"), "built with machine pdp11, and"),
        (
            lambda d: d["built_with"].update({"apache-tvm": "0.99.1"}),
            "built with apache-tvm 0.99.1",
        ),
        (lambda d: d.pop("entries"), r"manifest\.json/entries: a key is missing"),
        (lambda d: d["entries"][0].update(mesh="0"), r"entries/0/mesh: '0' is not a valid integer"),
        (lambda d: d.update(weight=d.pop("weights")), 'Did you mean "weights"'),
        (lambda d: d["files"].update({"gone.so": {"bytes": 1, "sha256": ""}}), "gone.so: the file"),
    ],
)
def test_a_folder_that_is_not_for_here(small, tmp_path, change, says):
    with pytest.raises(EngineError, match=f"DIST0640 .*{says}"):
        td.load(edited(small[0], tmp_path, change))


def test_all_faults_of_a_manifest_are_reported_with_their_places(small, tmp_path):
    def change(data):
        data["entries"][0].update(mesh="0", libary=data["entries"][0].pop("library"))
        data["files"]["main.so"]["bytes"] = -1
        del data["weights"][0]["parts"][0]["key"]
        data["target"] = {"mcpu": "x"}

    with pytest.raises(EngineError, match="DIST0640") as caught:
        td.load(edited(small[0], tmp_path, change))
    places = [v.location.partition("manifest.json/")[2] for v in caught.value.violations]
    assert sorted(places) == [
        "entries/0/libary", "entries/0/mesh", "files/main.so/bytes", "target",
        "weights/0/parts/0/key",
    ]  # fmt: skip
    assert {v.code for v in caught.value.violations} == {"DIST0640"}
    assert 'Did you mean "library"?' in {v.remedy for v in caught.value.violations}


@pytest.mark.parametrize("file", ["main.so", "weights-0.safetensors"])
@pytest.mark.parametrize("way", ["..", "absolute", "link", "folder link", "unlisted", "empty"])
def test_files_outside_the_folder(small, tmp_path, file, way):
    """A folder whose files were checked loads those of no other one."""
    copy = edited(small[0], tmp_path, lambda d: None)
    other = tmp_path / "other"
    other.mkdir()
    (copy / file).rename(other / file)
    names = {"..": f"../other/{file}", "absolute": str(other / file), "folder link": f"sub/{file}"}
    name = names.get(way, "" if way == "empty" else file)
    if way == "link":
        (copy / file).symlink_to(other / file)
    elif way == "folder link":
        (copy / "sub").symlink_to(other)
    text = (copy / "manifest.json").read_text().replace(f'"{file}"', json.dumps(name))
    data = json.loads(text)
    if way == "unlisted":
        del data["files"][file]
    (copy / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(EngineError, match=r"DIST0640 .*manifest\.json/(files|entries|weights)"):
        td.load(copy)


def test_links_inside_the_folder_are_followed(small, tmp_path):
    folder, x, (want,) = small
    copy = edited(folder, tmp_path, lambda d: None)
    (copy / "main.so").rename(copy / "other.so")
    (copy / "main.so").symlink_to("other.so")
    (tmp_path / "link").symlink_to(copy)
    (got,) = td.load(tmp_path / "link", check=True).run([x], engine="virtual")
    assert same_bits(got, want)


def test_files_that_were_damaged(small, tmp_path):
    folder, x, _ = small
    copy = edited(folder, tmp_path, lambda d: None)
    library = copy / "main.so"
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(bytes(data))
    loaded = td.load(copy)  # the size is right
    with pytest.raises(EngineError, match=r"DIST0640 .*main\.so: its checksum"):
        loaded.run([x], engine="virtual")
    with pytest.raises(EngineError, match=r"DIST0640 .*main\.so: its checksum"):
        td.load(copy, check=True)
    library.write_bytes(bytes(data[:-1]))
    with pytest.raises(EngineError, match=r"DIST0640 .*main\.so: it has \d+ bytes instead"):
        td.load(copy)


def test_folders_that_are_no_deployment(tmp_path):
    mod, _ = CASES["one_mesh"]()
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(
        EngineError, match=r"DIST0640 .*it contains thesis\.txt and is not a deployed"
    ):
        td.deploy(mod, tmp_path)
    assert (tmp_path / "thesis.txt").exists()
    with pytest.raises(EngineError, match=r"DIST0640 .*it contains no manifest\.json"):
        td.load(tmp_path)


def test_deploying_again_replaces(tmp_path):
    mod, (x, w) = CASES["one_mesh"]()
    td.deploy(mod, tmp_path, {"w": w})
    td.deploy(mod, tmp_path)
    assert not list(tmp_path.glob("*.safetensors"))
    (want,) = td.run(mod, [x, w], engine="virtual")
    (got,) = td.load(tmp_path).run([x, w], engine="virtual")
    assert same_bits(got, want)


def test_weights_that_do_not_fit(tmp_path):
    mod, (_, w) = CASES["one_mesh"]()
    with pytest.raises(EngineError, match='DIST0602 inputs: there is no input "v"'):
        td.deploy(mod, tmp_path / "a", {"v": w})
    with pytest.raises(EngineError, match=r'DIST0602 input 1 "w": shape \(3, 6\) given'):
        td.deploy(mod, tmp_path / "a", {"w": w.T})
    assert not (tmp_path / "a").exists()


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    mod, _ = CASES["one_mesh"]()
    with pytest.raises(DependencyError, match="DIST0112 deploy: there is no C compiler"):
        td.deploy(mod, tmp_path / "a")


def test_a_compiler_that_fails(tmp_path, monkeypatch):
    bad = tmp_path / "bad"
    links = 'for f in "$@"; do case $f in *.o) readlink $f;; esac; done'
    bad.write_text(f"#!/bin/sh\n{links} > {tmp_path}/links\necho out of paper >&2\nexit 1\n")
    bad.chmod(0o755)
    monkeypatch.setenv("CXX", str(bad))
    mod, _ = CASES["one_mesh"]()
    with pytest.raises(DependencyError, match=r"DIST0112 .*cannot link the library"):
        td.deploy(mod, tmp_path / "a", dispatch="tvm")
    objects = (tmp_path / "links").read_text().split()
    assert len(objects) == 2  # in memory: LLVM ends the process where a disk is full
    assert all(re.fullmatch(r"/proc/\d+/fd/\d+", path) for path in objects)
    assert not (tmp_path / "a").exists()


def test_what_is_loaded_is_where_it_was_put(small):
    assert Path(small[0]) == td.load(small[0]).folder

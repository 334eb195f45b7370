# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""A session keeps weights and state with its ranks, and takes its steps as single runs do."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.core.plan import plain_name
from tvm_distir.execution.runtime import Reference
from tvm_distir.execution.runtime.engines.threads import engine as threads_engine
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.runtime.program.lowered import lowered_program
from tvm_distir.execution.runtime.program.machines import make_machine
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors.tree import EngineError, OutputError

pytestmark = pytest.mark.quick
ENGINES = ["threads", "virtual"]


@functools.cache
def model():
    return td.zoo.mlp(size="tiny")


@functools.cache
def step(**options):
    return td.train_step(model(), loss="mse", **{"optimizer": "adamw", "rate": 0.01, **options})


@functools.cache
def distributed(strategy, devices, **options):
    mod = step(**options)
    return td.distribute(mod, td.planning.make_plan(mod, strategy, {"dp": devices}))


@functools.cache
def drawn():
    """Return the batch of a step, and the first weights by name."""
    names = [str(param.name) for param in step()["main"].params]
    x, targets, *rest = draw_inputs(step(), seed=1)
    count = sum(name.endswith((".weight", ".bias")) for name in names)
    return (x, targets), dict(zip(names[2:], rest[:count]))


def stepped(count):
    """Return the losses and weights of one device after each step."""
    (x, targets), weights = drawn()
    names = [str(param.name) for param in step()["main"].params][2:]
    shapes = [[int(n) for n in param.ty.shape] for param in step()["main"].params][2:]
    state = [weights.get(n, np.zeros(s, "float32")) for n, s in zip(names, shapes)]
    state[-1] = np.zeros((), "int64")
    reference, losses = Reference(step()), []
    for _ in range(count):
        loss, *state = reference.run([x, targets, *state])
        losses.append(float(loss))
    return losses, dict(zip(names, state))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", ["data_parallel", "zero:stage=3"])
def test_steps_are_those_of_one_device(engine, strategy):
    batch, weights = drawn()
    losses, state = stepped(4)
    with td.Session(distributed(strategy, 2), weights, engine=engine) as session:
        assert session.inputs == ("x", "targets")
        got = [float(session.step(*batch)[0]) for _ in range(3)]
        (last,) = session.step(batch[0], targets=batch[1])
        assert session.steps == 4
        np.testing.assert_allclose([*got, float(last)], losses, rtol=1e-5)
        full = session.state_dict(optimizer=True)
        assert list(full) == list(state)
        for name, array in full.items():
            np.testing.assert_allclose(array, state[name], rtol=1e-4, atol=1e-5, err_msg=name)
        assert list(session.state_dict()) == list(weights)
    with pytest.raises(EngineError, match="DIST0605 session: it is closed"):
        session.step(*batch)


def test_the_weights_of_the_caller_are_shared_and_stay():
    batch, weights = drawn()
    memory = {n: np.empty(a.size + 16, a.dtype) for n, a in weights.items()}
    given = {}
    for name, array in weights.items():
        start = -memory[name].ctypes.data % 64 // array.itemsize
        given[name] = memory[name][start : start + array.size].reshape(array.shape)
        given[name][...] = array
    session = td.Session(distributed("data_parallel", 2), given)
    addresses = {
        tensor.data_ptr() for tensor in session._resident._tensors[1] if tensor is not None
    }
    assert addresses >= {array.ctypes.data for array in given.values()}
    session.step(*batch)
    assert all(same_bits(given[name], array) for name, array in weights.items())


def test_a_checkpoint_is_read_on_another_mesh_and_by_the_model(tmp_path):
    batch, weights = drawn()
    first = td.Session(distributed("zero:stage=3", 2), weights)
    for _ in range(2):
        first.step(*batch)
    path = first.save(tmp_path / "run")
    assert path == tmp_path / "run" / "step-00000002"
    other = td.Session(distributed("zero:stage=1", 4), weights, engine="virtual")
    other.load(tmp_path / "run")
    assert other.steps == 2
    for name, array in first.state_dict(optimizer=True).items():
        assert same_bits(array, other.state_dict(optimizer=True)[name])
    (loss,), (again,) = first.step(*batch), other.step(*batch)
    assert float(again) == pytest.approx(float(loss), rel=1e-5)
    other.save(tmp_path / "run")

    plan = td.planning.make_plan(model(), "tensor_parallel", {"tp": 2})
    forward = td.Session(td.distribute(model(), plan), path)
    assert forward.inputs == ("x",)
    (y,) = forward.step(batch[0])
    assert float(((y - batch[1]) ** 2).mean()) == pytest.approx(float(loss), rel=1e-5)
    forward.load(tmp_path / "run")
    assert forward.steps == 3


def test_folders_of_other_runs_and_checkpoints_of_other_models_are_refused(tmp_path):
    batch, weights = drawn()
    session = td.Session(distributed("data_parallel", 2), weights)
    session.save(tmp_path)
    with pytest.raises(OutputError, match=r"DIST0160 .*it has a checkpoint of step 0"):
        session.save(tmp_path)
    with pytest.raises(OutputError, match=r"DIST0160 .*checkpoints of another run"):
        td.Session(distributed("data_parallel", 2), weights).save(tmp_path)
    sgd = td.Session(distributed("data_parallel", 2, optimizer="sgd"), tmp_path)
    assert not set(sgd.state_dict(optimizer=True)) - set(weights)
    sgd.save(tmp_path / "sgd")
    with pytest.raises(EngineError, match=r"DIST0641 .*the checkpoint lacks "):
        session.load(tmp_path / "sgd")
    small = td.zoo.mlp(size="tiny", layers=1)
    forward = td.distribute(small, td.planning.make_plan(small, "data_parallel", {"dp": 2}))
    names = {str(p.name) for p in small["main"].params}
    kept = td.Session(forward, {n: a for n, a in weights.items() if n in names})
    with pytest.raises(EngineError, match=r"DIST0641 .*the program has no weight "):
        kept.load(tmp_path)
    assert float(session.step(*batch)[0]) == pytest.approx(stepped(1)[0][0], rel=1e-5)


def test_state_is_loaded_by_name(tmp_path):
    batch, weights = drawn()
    session = td.Session(distributed("zero:stage=3", 2), weights)
    (loss,) = session.step(*batch)
    session.load_state_dict(weights)
    assert all(same_bits(session.state_dict()[n], a) for n, a in weights.items())
    assert float(session.step(*batch)[0]) == float(loss)
    with pytest.raises(EngineError, match=r'DIST0602 .*"targets".*no weight'):
        session.load_state_dict({"targets": batch[1]})


def test_what_is_missing_or_is_no_session_is_refused():
    batch, weights = drawn()
    dist = distributed("data_parallel", 2)
    some = dict(list(weights.items())[1:])
    with pytest.raises(EngineError, match=r"DIST0602 .*missing: layers.0.linear.weight"):
        td.Session(dist, some)
    with pytest.raises(EngineError, match=r"DIST0605 engine mpi: .*tvm-distir run FOLDER --job"):
        td.Session(dist, weights, engine=td.execution.MpiEngine())
    session = td.Session(dist, weights)
    for inputs, named in [(batch[:1], {}), (batch, {"x": batch[0]}), (batch[:1], {"y": batch[1]})]:
        with pytest.raises(EngineError, match="DIST0602"):
            session.step(*inputs, **named)
    assert session.steps == 0


def test_half_precision_weights_have_masters_of_the_same_value():
    mod = td.zoo.mlp(size="tiny", dtype="float16")
    train = td.train_step(mod, loss="mse", optimizer="adamw", rate=0.01, master=True)
    plan = td.planning.make_plan(train, "zero:stage=1", {"dp": 2})
    (x, targets), weights = drawn()
    halves = {name: array.astype("float16") for name, array in weights.items()}
    session = td.Session(td.distribute(train, plan), halves)
    state = session.state_dict(optimizer=True)
    for name, array in halves.items():
        assert same_bits(state[f"{name}.master"], array.astype("float32"))
    losses = [float(session.step(x.astype("float16"), targets.astype("float16"))[0]) for _ in "abc"]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("engine", ENGINES)
def test_caches_stay_and_are_appended_to_in_place(engine):
    mod = td.zoo.gpt(size="tiny", layers=1, entry="serve", batch=4)
    dist = td.distribute(mod, td.planning.make_plan(mod, "megatron", {"tp": 2}))
    values = dict(zip((str(p.name) for p in mod["main"].params), draw_inputs(mod, seed=0)))
    batch = [values.pop(name) for name in ("input_ids", "pages", "lengths")]
    caches = {n: np.zeros_like(values.pop(n)) for n in list(values) if n.endswith("_cache")}
    expected, *new = td.run(dist, [*batch, *caches.values(), *values.values()], engine="virtual")
    session = td.Session(dist, values, engine=engine)
    assert session.inputs == ("input_ids", "pages", "lengths")
    slots = [s for s, p in enumerate(lowered_program(dist).entries[0].inputs) if "cache" in p.name]
    before = [session._resident._tensors[0][slot].data_ptr() for slot in slots]
    (logits,) = session.step(*batch)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    assert [session._resident._tensors[0][slot].data_ptr() for slot in slots] == before
    state = session.state_dict(optimizer=True)
    for name, array in zip(caches, new, strict=True):
        np.testing.assert_allclose(state[name], array, rtol=1e-5, atol=1e-6)
    assert set(session.state_dict()) == set(values)


def test_tensors_of_pytorch_go_in_and_come_out():
    torch = pytest.importorskip("torch", reason="extra torch")
    batch, weights = drawn()
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    session = td.Session(distributed("data_parallel", 2), tensors)
    (loss,) = session.step(*map(torch.tensor, batch))
    assert isinstance(loss, torch.Tensor) and loss.shape == ()
    assert float(loss) == pytest.approx(stepped(1)[0][0], rel=1e-5)
    state = session.state_dict(torch=True)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    (parts,) = session.step(*batch, outputs="sharded")
    assert sorted(parts.parts) == [0, 1]


def test_a_deployed_folder_keeps_its_weights(tmp_path):
    batch, weights = drawn()
    td.deploy(distributed("zero:stage=1", 2), tmp_path, weights)
    with td.Session(tmp_path, engine="virtual") as session:
        losses = [float(session.step(*batch)[0]) for _ in range(2)]
        names = [plain_name(name) for name in session.state_dict()]
    np.testing.assert_allclose(losses, stepped(2)[0], rtol=1e-5)
    assert names == [plain_name(name) for name in weights]


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path):
    """Its corner would fit; weights and state stay as they are."""
    wide = td.train_step(td.zoo.mlp(size="tiny", hidden=24), loss="mse", optimizer="adamw")
    dist = td.distribute(wide, td.planning.make_plan(wide, "data_parallel", {"dp": 2}))
    values = dict(zip((str(p.name) for p in wide["main"].params), draw_inputs(wide, seed=2)))
    with td.Session(dist, {n: v for n, v in values.items() if n in drawn()[1]}) as other:
        other.save(tmp_path)
    _, weights = drawn()
    with td.Session(distributed("data_parallel", 2), weights) as session:
        with pytest.raises(EngineError, match="DIST0602"):
            session.load(tmp_path)
        for name, array in session.state_dict().items():
            np.testing.assert_array_equal(array, weights[name])


@pytest.mark.parametrize("rate", [0.1, "0.1"])
def test_a_rate_is_a_number_or_its_text(rate):
    dist = distributed("data_parallel", 2, rate_input=True)
    batch, weights = drawn()
    with td.Session(dist, weights, rate=rate) as session:
        session.step(*batch)
        with pytest.raises(EngineError, match=r'DIST0602.*"rate" is given beside a schedule'):
            session.step(*batch, rate=np.float32(5))


def test_what_a_checkpoint_that_was_cut_short_left_is_removed(tmp_path):
    (tmp_path / ".step-00000009.dead").mkdir()
    with td.Session(distributed("data_parallel", 2), drawn()[1]) as session:
        session.save(tmp_path)
    assert not list(tmp_path.glob(".step-*"))


def test_types_that_safetensors_lack_are_refused(tmp_path):
    with pytest.raises(EngineError, match=r"DIST0642 .*complex64"):
        td.export_weights({"a": np.zeros(2, "complex64")}, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_steps_on_threads_share_the_machines_of_their_ranks(monkeypatch):
    made = []

    def make(library):
        made.append(library)
        return make_machine(library)

    monkeypatch.setattr(threads_engine, "make_machine", make)
    batch, weights = drawn()
    with td.Session(distributed("zero", 2), weights) as session:
        for _ in range(3):
            session.step(*batch)
        assert len(made) == 2
        with pytest.raises(EngineError):
            session.step(batch[0][:1], batch[1][:1])
        assert session.step(*batch)[0].item() > 0

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Learning rates by schedule, and losses that are on the disk after each step."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_distir as td
from tvm_distir.execution.serving.loss_file import LossFile
from tvm_distir.execution.serving.step_data import StepData
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.support.errors.tree import EngineError, OutputError, UsageError

pytestmark = pytest.mark.quick


def torch_rates(kind, peak, warmup, steps, final):
    """Return the rates of the schedulers of PyTorch, one after the other."""
    torch = pytest.importorskip("torch", reason="extra torch")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=peak)
    schedulers = torch.optim.lr_scheduler
    warm = schedulers.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
    if kind == "cosine":
        rest = schedulers.CosineAnnealingLR(optimizer, steps - warmup, final)
    else:
        rest = schedulers.LinearLR(optimizer, 1.0, final / peak, steps - warmup)
    both = schedulers.SequentialLR(optimizer, [warm, rest], [warmup - 1])
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        both.step()
    return rates


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_rates_are_those_of_pytorch(kind):
    schedule = td.RateSchedule.read(f"{kind}:peak=0.1,warmup=4,steps=20,final=0.01")
    rates = [schedule(step) for step in range(1, 21)]
    np.testing.assert_allclose(rates, torch_rates(kind, 0.1, 4, 20, 0.01), rtol=1e-6)
    assert schedule(20) == schedule(1000) == pytest.approx(0.01)


def test_a_cosine_is_half_a_period_from_the_peak_to_the_final_rate():
    schedule = td.RateSchedule.read("cosine:peak=0.3,warmup=2,steps=6,final=0.1")
    shares = np.array([1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0])
    rates = [schedule(step) for step in range(2, 7)]
    np.testing.assert_allclose(rates, 0.1 + 0.2 * shares, rtol=1e-12)


def test_a_number_is_a_constant_rate():
    schedule = td.RateSchedule.read("0.003")
    assert (schedule.kind, schedule(1), schedule(500)) == ("constant", 0.003, 0.003)
    assert td.RateSchedule.read("constant:peak=1,warmup=2")(1) == 0.5


@pytest.mark.parametrize(
    "text",
    ["", "nan", "cosine", "cosine:peak=1", "step:peak=1", "linear:peak=1,steps=3,warmup=3",
     "constant:peak=1,steps=4", "linear:peak=1,steps=x", "linear:peak=1,steps=4,gamma=2"],
)  # fmt: skip
def test_other_schedules_are_refused(text):
    with pytest.raises(UsageError, match="DIST0152 rate: "):
        td.RateSchedule.read(text)


def test_a_session_takes_the_rate_of_its_step(tmp_path):
    mod = td.train_step(td.zoo.mlp(size="tiny"), loss="mse", optimizer="sgd", rate_input=True)
    dist = td.distribute(mod, td.planning.make_plan(mod, "data_parallel", {"dp": 2}))
    x, targets, _, *weights = draw_inputs(mod, seed=0)
    named = dict(zip((str(p.name) for p in mod["main"].params[3:]), weights, strict=True))
    plain = td.Session(dist, named)
    session = td.Session(dist, named, rate="linear:peak=0.1,warmup=2,steps=6")
    assert plain.inputs == ("x", "targets", "rate") and session.inputs == ("x", "targets")
    for rate in (0.05, 0.1, 0.075, 0.05):
        (loss,) = session.step(x, targets)
        assert float(loss) == float(plain.step(x, targets, np.float32(rate))[0])
    session.save(tmp_path)
    later = td.Session(dist, named, rate=lambda step: 0.025 if step == 5 else -1.0)
    later.load(tmp_path)
    assert float(later.step(x, targets)[0]) == float(plain.step(x, targets, np.float32(0.025))[0])
    fixed = td.train_step(td.zoo.mlp(size="tiny"), loss="mse")
    other = td.distribute(fixed, td.planning.make_plan(fixed, "data_parallel", {"dp": 2}))
    with pytest.raises(EngineError, match=r'DIST0602 .*there is no input "rate"'):
        td.Session(other, named, rate="0.1")


def test_the_rate_of_a_job_is_an_input_of_each_step(tmp_path):
    np.savez(tmp_path / "steps.npz", x=np.zeros((3, 2), "float32"))
    schedule = td.RateSchedule.read("linear:peak=0.1,steps=4")
    data = StepData(None, tmp_path / "steps.npz", 1, [], schedule)
    rates = [data.of_step(step)["rate"] for step in (1, 2, 3)]
    assert [float(rate) for rate in rates] == [np.float32(x) for x in (0.075, 0.05, 0.025)]
    assert set(data.checksums(2)) == {"x"}
    np.savez(tmp_path / "rates.npz", rate=np.float32(1))
    with pytest.raises(EngineError, match=r'DIST0602 .*it has "rate" beside a schedule'):
        StepData(tmp_path / "rates.npz", None, 1, [], schedule)


def test_losses_are_in_the_file_after_each_step(tmp_path):
    path = tmp_path / "losses.csv"
    losses = LossFile(path, 0, is_resumed=False)
    for step, loss in enumerate((2.5, 1.25, 0.1), 1):
        losses.add(step, {0: np.asarray(loss, "float32"), 1: np.zeros(4)})
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) == step + 1
    assert lines[:3] == ["step,output0", "1,2.5", "2,1.25"]
    assert np.float32(lines[3].split(",")[1]) == np.float32(0.1)


def test_a_resumed_run_replaces_the_losses_after_its_checkpoint(tmp_path):
    path = tmp_path / "losses.csv"
    for step in (1, 2, 3):
        LossFile(path, step - 1, is_resumed=True).add(step, {0: np.ones(())})
    LossFile(path, 1, is_resumed=True).add(2, {0: np.zeros(())})
    assert path.read_text(encoding="utf-8").splitlines() == ["step,output0", "1,1.0", "2,0.0"]
    with pytest.raises(OutputError, match=r"DIST0160 .*losses of another run"):
        LossFile(path, 0, is_resumed=False)
    path.write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(EngineError, match=r"DIST0641 .*no losses by step"):
        LossFile(path, 1, is_resumed=True)

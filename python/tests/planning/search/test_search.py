# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Search over meshes, stages and micro-batches."""

from __future__ import annotations

import itertools
import json
import math

import pytest

import tvm_distir as td
from tests.nightly import nightly_but
from tests.planning.search.systems import A100, QUICK
from tvm_distir.core.plan.plan import Plan
from tvm_distir.execution.runtime.program.joining import same_bits
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning.search import trials
from tvm_distir.planning.search.candidates import Candidate, Enumeration, factorisations, kept_rules
from tvm_distir.planning.search.constraints import Constraints
from tvm_distir.planning.search.driver import search
from tvm_distir.planning.search.folder import Folder
from tvm_distir.planning.search.uneven_stages import Uneven
from tvm_distir.planning.study import Study
from tvm_distir.support.errors.tree import (
    InfeasibleError,
    InternalError,
    OutputError,
    PlanError,
    UsageError,
)


def _gpt(batch: int):
    return td.zoo.gpt(size="tiny", layers=4, batch=batch)


def _short(batch: int):
    return td.zoo.gpt(size="tiny", layers=2, batch=batch)


ADAM = {"optimizer": "adam"}
STRATEGIES = ["data_parallel+megatron", "data_parallel+megatron:sequence=1"]
STRATEGIES += ["zero:stage=1", "zero:stage=3"]
pytestmark = pytest.mark.usefixtures("known_trials")


class TestEnumeration:
    """What is enumerated."""

    @pytest.mark.parametrize("number", [1, 7, 24, 96, 960])
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_factorisations_are_all_there_are(self, number, count):
        divisors = [n for n in range(1, number + 1) if number % n == 0]
        every = itertools.product(divisors, repeat=count)
        assert list(factorisations(number, count)) == [x for x in every if math.prod(x) == number]

    def test_each_mesh_comes_once_whatever_its_axes_are_called(self):
        result = list(Enumeration(Constraints(), 24, A100, None, stages=False))
        shapes = [tuple(size for _, size in each.axes) for each in result]
        assert len(set(shapes)) == len(shapes)
        assert sorted(shapes) == sorted(
            {tuple(n for n in x if n > 1) for x in factorisations(24, 2)}
        )

    def test_constraints_hold(self):
        rules = Constraints(("pp", "dp", "tp"), {"tp": 8}, {"pp": 4}, ("tp",))
        result = Enumeration(rules, 96, A100, 96, stages=True)
        remaining = {(each.stages, each.axes) for each in result}
        sizes = [(4, dp, tp) for dp in range(1, 25) for tp in (1, 2, 4, 8) if 4 * dp * tp == 96]
        assert remaining == {
            (pp, tuple((n, s) for n, s in (("dp", dp), ("tp", tp)) if s > 1))
            for pp, dp, tp in sizes
        }

    def test_groups_inside_a_node_do_not_leave_it(self):
        """Nodes of 8: 3 and 6 devices would lie across their border, and so would 16."""
        rules = Constraints(("dp", "tp"), inside_node=("tp",))
        result = Enumeration(rules, 96, A100, None, stages=False)
        assert {dict(each.axes).get("tp", 1) for each in result} == {1, 2, 4, 8}

    def test_micro_batches_divide_the_batch(self):
        rules = Constraints(("pp", "dp"), fixed={"pp": 2}, micro_batches=(1, 3, 4), chunks=(1, 2))
        result = list(Enumeration(rules, 4, A100, 24, stages=True))
        assert {(each.micro_batches, each.chunks) for each in result} == {
            (12, 1), (12, 2), (4, 1), (4, 2), (3, 1)
        }  # fmt: skip

    def test_an_unknown_axis_is_refused(self):
        with pytest.raises(UsageError, match='DIST0152 most: there is no axis "pt"'):
            Constraints(("dp", "tp"), most={"pt": 8})

    def test_kept_rules_go_by_names_of_axes(self):
        rules = [{"param": "x", "placement": "S[0], R", "stationary": True}]
        keep = Plan.from_dict({"schema_version": 1, "mesh": {"dp": 2, "tp": 2}, "rules": rules})
        mesh = next(iter(Enumeration(Constraints(fixed={"tp": 1}), 8, A100, None, stages=False)))
        assert kept_rules(keep, mesh.mesh).rules[0].placement == (0,)


@pytest.fixture(scope="module")
def steps():
    """A search for a training step on eight devices, everything solved."""
    return search(_gpt, 8, QUICK, batch=16, train=ADAM, top=99)


class TestPlans:
    """What is found."""

    def test_times_are_those_of_the_plans(self, steps):
        """As another run distributes and simulates them, read from their JSON."""
        step = td.train_step(_gpt(16), **ADAM)
        labelled = [result for result in steps.plans if not result.row.why]
        assert len(labelled) == 3 and steps.complete
        asis = sorted(result.row.why for result in steps.plans if result.row.why)
        assert asis == ["zero:stage=1", "zero:stage=3"]
        for result in steps.plans:
            plan = td.planning.with_updates(step, Plan.from_dict(result.plan.to_dict()))
            program = td.export(td.distribute(step, plan, system=QUICK))
            assert td.simulate(program, QUICK).time_s == result.time_s
        times = [result.time_s for result in steps.plans]
        assert times == sorted(times)

    def test_shares_are_those_of_an_analysis(self, steps):
        for result in steps.plans:
            busy = max(
                result.simulated.devices,
                key=lambda device: device.compute_s + device.exposed_comm_s,
            )
            compute, comm = result.row.shares
            assert compute == busy.compute_s / result.time_s
            assert comm == busy.exposed_comm_s / result.time_s
            assert 0 < compute < compute + comm <= 1.0 + 1e-9

    def test_without_fused_kernels_the_bound_counts_all(self, steps):
        parts = steps.above_bound
        assert parts["other_kernels_s"] == 0 and min(parts.values()) >= 0
        excess_s = steps.plans[0].time_s - steps.least_s
        assert sum(parts.values()) == pytest.approx(excess_s, abs=1e-15)

    def test_no_time_is_below_what_is_proved(self, steps):
        assert steps.least_s == min(row.least_s for row in steps.rows)
        for row in steps.rows:
            assert 0 < row.least_s <= row.time_s
            assert row.gap <= 0.01

    @pytest.mark.parametrize("text", nightly_but(STRATEGIES, {1, 3}))
    def test_the_best_is_no_worse_than_a_strategy_on_any_mesh(self, steps, text):
        """ZeRO is tried as it is; the bound of a search for one plan cuts nothing better."""
        compared = search(
            _gpt, 8, QUICK, batch=16, train=ADAM, top=1,
            constraints=Constraints(fixed={"dp": 8} if "zero" in text else {}),
            compare=(text, lambda mod, mesh, known: td.planning.make_plan(mod, text, mesh, known)),
        )  # fmt: skip
        assert compared.baseline is not None
        assert steps.plans[0].time_s <= compared.baseline.time_s
        if "zero" not in text:  # over the same meshes
            assert compared.plans[0].row == steps.plans[0].row

    def test_a_bug_in_what_is_compared_with_is_no_refusal(self):
        """Some meshes may be refused; an internal error is told, whatever other meshes give."""

        def make(mod, mesh, known):
            if mesh.get("tp", 1) == 1:
                raise InternalError("DIST0901", "a bug", location="here", remedy="Report it.")
            return td.planning.make_plan(mod, "tensor_parallel", mesh, known)

        with pytest.raises(InternalError):
            search(
                _short, 4, QUICK, batch=16, top=1,
                constraints=Constraints(("dp", "tp")), compare=("tensor_parallel", make),
            )  # fmt: skip

    def test_a_plan_is_compared_with_as_it_is(self):
        """One of the stages of a search before, and one for other devices."""
        rules = Constraints(("pp", "dp", "tp"), fixed={"pp": 2}, micro_batches=(2,))
        first = search(_short, 4, QUICK, batch=16, train=ADAM, constraints=rules, top=1).plans[0]
        inputs = Plan.from_dict(first.plan.to_dict())
        result = search(_short, 4, QUICK, batch=16, train=ADAM, top=9, compare=("mine", inputs))
        assert (result.baseline.time_s, result.baseline.why) == (first.time_s, "mine")
        assert result.baseline.candidate == first.row.candidate
        assert [each.plan for each in result.plans if each.row.why == "mine"] == [inputs]
        with pytest.raises(UsageError, match=r"DIST0151 mine: .* for 4 devices, the search for 8"):
            search(_short, 8, QUICK, batch=16, train=ADAM, compare=("mine", inputs))

    def test_a_plan_that_does_not_fit_is_compared_with_but_not_given(self):
        step = td.train_step(_short(16), **ADAM)
        plan = td.planning.make_plan(step, "data_parallel", {"dp": 4}, QUICK)
        peak = td.simulate(td.export(td.distribute(step, plan, system=QUICK)), QUICK)
        result = search(
            _short, 4, QUICK, batch=16, train=ADAM, top=9, compare=("mine", plan),
            memory_bytes=peak.peak_memory_bytes - 1,
        )  # fmt: skip
        assert (result.baseline.time_s, result.baseline.state) == (peak.time_s, "memory")
        assert result.plans and all(each.row.why != "mine" for each in result.plans)

    def test_a_strategy_that_is_better_is_given(self):
        """Where only one placement is searched, another one that is faster comes first."""
        rules = [{"param": "wte.weight", "placement": "R", "stationary": True}]
        keep = Plan.from_dict({"schema_version": 1, "mesh": {"tp": 4}, "rules": rules})
        result = search(
            _gpt, 4, QUICK, batch=16, train=ADAM, top=1,
            constraints=Constraints(("tp",), keep=keep),
            compare=("best", lambda mod, mesh, known: td.auto_shard(mod, mesh, known).plan()),
        )  # fmt: skip
        assert result.baseline is not None and len(result.plans) == 1
        best = min([row for row in result.rows if row.time_s], key=lambda row: row.time_s)
        first = result.plans[0].row
        assert first.time_s == min(best.time_s, result.baseline.time_s)

    def test_plans_run_and_are_equal_to_one_device(self, steps):
        step = td.train_step(_gpt(16), **ADAM)
        result = steps.plans[0]
        plan = td.planning.with_updates(step, result.plan)
        report = td.verify(step, plan, engine="virtual")
        assert report.equal and report.collectives

    def test_the_front_has_what_no_other_beats(self, steps):
        solved = [(row.time_s, row.peak_bytes) for row in steps.rows]
        front = {(row.time_s, row.peak_bytes) for row in steps.front}
        for time_s, peak in solved:
            beaten = any(t <= time_s and p <= peak and (t, p) != (time_s, peak) for t, p in solved)
            assert beaten or (time_s, peak) in front


class TestMicroBatches:
    """Gradient accumulation without stages."""

    @pytest.fixture(scope="class")
    @classmethod
    def limited(cls):
        """A bound of memory that the whole step exceeds, and what is found within it."""
        rules = Constraints(("dp",))
        whole = search(_short, 4, QUICK, batch=32, train=ADAM, top=99, constraints=rules)
        limit = int(0.6 * min(row.peak_bytes for row in whole.rows))
        return limit, search(
            _short, 4, QUICK, batch=32, train=ADAM, top=99, constraints=rules, memory_bytes=limit
        )

    def test_they_are_found_where_the_whole_step_does_not_fit(self, limited):
        limit, result = limited
        assert result.plans and all(each.row.peak_bytes <= limit for each in result.plans)
        assert {each.row.candidate.stages for each in result.plans} == {1}
        assert min(each.row.candidate.micro_batches for each in result.plans) > 1
        best = result.plans[0]
        step = td.train_step(
            _short(32 // best.plan.schedule.micro_batches), schedule=best.plan.schedule, **ADAM
        )
        plan = td.planning.with_updates(step, Plan.from_dict(best.plan.to_dict()))
        program = td.export(td.distribute(step, plan, system=QUICK))
        assert td.simulate(program, QUICK).time_s == best.time_s
        assert td.verify(step, plan, engine="virtual").equal

    def test_they_are_no_worse_than_by_hand(self, limited):
        """Where the whole step does not fit, of all numbers on the mesh of the strategy."""
        text = "pipeline:stages=1,micro_batches={}+zero:stage=2"
        limit, result = limited
        observed = result.plans[0]
        for count in (2, 4, 8):
            result = Study(
                _short(32 // count), strategy=text.format(count), mesh={"dp": 4}, system=QUICK,
                train=ADAM,
            ).result  # fmt: skip
            assert result.peak_memory_bytes > limit or observed.time_s <= result.time_s

    def test_numbers_that_are_given_are_the_only_ones(self):
        rules = Constraints(("dp",), counts=(2, 8))
        result = search(_short, 4, QUICK, batch=32, train=ADAM, top=99, constraints=rules)
        assert {plan.row.candidate.micro_batches for plan in result.plans} == {2, 8}
        assert {plan.row.why for plan in result.plans} == {"", "zero:stage=1", "zero:stage=3"}

    def test_a_batch_that_is_fixed_is_refused(self):
        with pytest.raises(UsageError, match="DIST0151 micro_batches"):
            search(_short(8), 4, QUICK, train=ADAM, constraints=Constraints(counts=(2,)))

    def test_a_strategy_with_micro_batches_is_compared_with(self):
        text = "pipeline:stages=1,micro_batches=4+zero:stage=1"
        observed = search(
            _short, 4, QUICK, batch=16, train=ADAM, compare=(text, trials.StrategyMaker(text)),
            constraints=Constraints(("dp",)),
        )  # fmt: skip
        study = Study(
            _short(4), strategy=text, mesh={"dp": 4}, system=QUICK, train=ADAM
        )  # fmt: skip
        assert observed.baseline.time_s == study.result.time_s
        assert observed.baseline.candidate.micro_batches == 4


def test_no_bound_of_a_system_with_fused_kernels_is_above_a_time():
    """Kernels that a profile fuses do not store what is between them."""
    result = search(_short, 4, "dgx-a100-megatron", batch=16, train=ADAM, top=99)
    wide = td.zoo.gpt(size="gpt2", layers=1, batch=8)
    assert all(0 < row.least_s <= row.time_s for row in result.rows)
    result = search(wide, 4, "dgx-h100-megatron", train=ADAM, top=99)
    assert all(0 < row.least_s <= row.time_s for row in result.rows)
    best, parts = result.plans[0], result.above_bound
    assert sum(parts.values()) == pytest.approx(best.time_s - result.least_s, abs=1e-15)
    busy = max(best.simulated.lanes, key=lambda lane: sum(op.time_s for op in lane.ops))
    products = [op.time_s for op in busy.ops if op.flops and op.bound_by == "compute"]
    assert best.row.bounded_s == pytest.approx(sum(products), rel=0.02)
    assert parts["other_kernels_s"] == best.row.compute_s - best.row.bounded_s > 0
    assert result.to_dict()["above_bound"] == parts


class TestStages:
    """Pipelines."""

    rules = Constraints(("pp", "dp", "tp"), fixed={"pp": 2}, micro_batches=(2,))

    def test_plans_of_stages_run(self):
        result = search(_short, 4, QUICK, batch=8, train=ADAM, constraints=self.rules, top=9)
        ran = set()
        for each in result.plans:
            schedule = each.plan.schedule
            step = td.train_step(_short(8 // schedule.micro_batches), schedule=schedule, **ADAM)
            plan = td.planning.with_updates(step, each.plan)
            if schedule.micro_batches not in ran:  # one plan of each number is run
                assert td.verify(step, plan, engine="virtual").equal
            ran.add(schedule.micro_batches)
            program = td.export(td.distribute(step, plan, system=QUICK))
            assert td.simulate(program, QUICK).time_s == each.time_s
        assert ran == {2, 4}

    def test_what_does_not_fit_is_made_again(self):
        free = search(_gpt, 2, QUICK, batch=8, train=ADAM, constraints=self.rules).plans[0]
        rules = Constraints(
            ("pp", "dp", "tp"), fixed={"pp": 2}, micro_batches=(2,), recompute=("none", "full")
        )
        limit = int(0.95 * free.row.peak_bytes)
        result = search(_gpt, 2, QUICK, batch=8, train=ADAM, constraints=rules, memory_bytes=limit)
        best = result.plans[0]
        assert best.row.candidate.recompute == "full" and best.row.peak_bytes <= limit
        assert result.space["memory"] == 1
        assert best.plan.recompute == {"*": "full"}

    def test_nothing_that_fits_is_refused(self):
        with pytest.raises(InfeasibleError, match="DIST0801 search: none of 1 candidates"):
            search(_gpt, 2, QUICK, batch=8, train=ADAM, constraints=self.rules, memory_bytes=1000)


@pytest.fixture(scope="module")
def everything():
    """A search with stages from which no estimate leaves anything out."""
    rules = TestOutlook.rules
    return search(_short, 4, QUICK, batch=8, train=ADAM, constraints=rules, top=99, margin=9.0)


class TestOutlook:
    """What layers say before anything is labelled."""

    rules = Constraints(("pp", "dp", "tp"), micro_batches=(2,))

    def test_it_is_near_what_is_simulated(self, everything):
        near = [row.time_s / row.likely_s for row in everything.rows if row.state == "solved"]
        assert len(near) >= 3
        assert max(near) < 2.5 * min(near)
        assert all(0.2 * row.time_s < row.least_s < row.time_s for row in everything.rows)

    def test_what_it_leaves_out_is_no_better(self, everything):
        result = search(_short, 4, QUICK, batch=8, train=ADAM, constraints=self.rules, top=1)
        assert result.space["estimate"] + result.space.get("bound", 0) > 0
        assert result.plans[0].row == everything.plans[0].row


@pytest.mark.parametrize(
    ("axes", "rules", "batch", "words"),
    [
        ("dp,tp", {"most": {"dp": 1, "tp": 2}}, 8, "dp at most 1 and tp at most 2 exclude all"),
        ("dp,tp", {"most": {"dp": 2}, "fixed": {"tp": 3}}, 8, "possible: tp=3 exclude all"),
        (
            "dp,tp,cp",
            {"most": {"cp": 1}, "fixed": {"dp": 2, "tp": 1}},
            8,
            "cp at most 1 and dp=2 and tp=1 exclude all",
        ),
        (
            "pp,dp",
            {"fixed": {"pp": 2}, "most": {"dp": 4}, "micro_batches": (3,)},
            8,
            "pp=2 and micro-batches of 3 in a batch of 8 exclude all",
        ),
    ],
)
def test_the_fewest_constraints_that_contradict_each_other_are_named(axes, rules, batch, words):
    inputs = Constraints(tuple(axes.split(",")), **rules)
    with pytest.raises(InfeasibleError, match=f"DIST0802 search: no mesh of 4 .*{words}"):
        search(_gpt, 4, QUICK, batch=batch, train=ADAM, constraints=inputs)


@pytest.mark.parametrize("devices", [24, 96, 960])
def test_numbers_that_are_no_powers_of_two(devices):
    rules = Constraints(most={"tp": 4}, fixed={"dp": devices // 3})
    result = search(_gpt, devices, QUICK, batch=devices, constraints=rules, top=1)
    assert dict(result.plans[0].row.candidate.axes) == {"dp": devices // 3, "tp": 3}


def test_the_least_that_is_needed_is_said():
    """Of all meshes that which needs least; with that it fits, or nearly."""
    mod = td.zoo.gpt(size="tiny", vocab=1 << 18, batch=8)
    with pytest.raises(InfeasibleError, match=r"DIST0801 .* the smallest is \S+: ") as caught:
        search(mod, 4, QUICK, memory_bytes=1000)
    needed = float(caught.value.what.split("at least ")[1].split(" GiB")[0]) * 2**30
    assert needed > 2**25
    assert search(mod, 4, QUICK, memory_bytes=int(2 * needed)).plans


def test_a_module_has_its_own_batch():
    result = search(td.zoo.vit(size="tiny", batch=8), 4, QUICK)
    assert result.plans and result.plans[0].row.candidate.schedule is None
    with pytest.raises(UsageError, match="DIST0151"):
        search(td.zoo.vit(size="tiny", batch=8), 4, QUICK, batch=8)


class TestFolder:
    """Searches that go on."""

    def test_an_interrupted_search_goes_on(self, tmp_path, monkeypatch, known_trials):
        whole = search(_short, 4, QUICK, batch=8, train=ADAM)
        monkeypatch.setattr(trials.Trials, "of", known_trials)
        make, calls = trials.labeller_of, []

        def interrupted(*inputs, **more):
            calls.append(inputs)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return make(*inputs, **more)

        monkeypatch.setattr(trials, "labeller_of", interrupted)
        folder = Folder(tmp_path, {"what": 1}, resume=False)
        first = search(_short, 4, QUICK, batch=8, train=ADAM, folder=folder)
        assert not first.complete and first.space["left"] == len(first.rows) - 1
        folder = Folder(tmp_path, {"what": 1}, resume=True)
        second = search(_short, 4, QUICK, batch=8, train=ADAM, folder=folder)
        assert second.rows == whole.rows and second.complete
        assert [each.plan for each in second.plans] == [each.plan for each in whole.plans]
        assert len(calls) == 1 + len(whole.rows)  # the first one is not labelled again

    def test_other_settings_are_refused(self, tmp_path):
        folder = Folder(tmp_path, {"model": "a"}, resume=False)
        folder.finish(search(_gpt, 4, QUICK, batch=8, folder=folder))
        with pytest.raises(UsageError, match=r"DIST0151 .*other settings \(model\)"):
            Folder(tmp_path, {"model": "b"}, resume=True)
        with pytest.raises(UsageError, match=r"DIST0151 .*already contains a search"):
            Folder(tmp_path, {"model": "a"}, resume=False)

    def test_a_search_that_failed_is_no_hindrance(self, tmp_path):
        path = tmp_path / "found"
        with pytest.raises(InfeasibleError, match="DIST0801"):
            settings = {"memory": "1KiB"}
            search(
                _gpt,
                4,
                QUICK,
                batch=8,
                memory_bytes=1024,
                folder=Folder(path, settings, resume=False),
            )
        assert (path / "rows.jsonl").exists() and not (path / "search.json").exists()
        folder = Folder(path, {"memory": None}, resume=False)
        folder.finish(search(_gpt, 4, QUICK, batch=8, folder=folder))
        assert json.loads((path / "search.json").read_text())["settings"] == {"memory": None}

    def test_a_failure_after_plans_were_found_loses_none(self, tmp_path):
        def refused(*_):
            raise PlanError("DIST0233", "no such thing", location="", remedy="")

        folder = Folder(tmp_path, {}, resume=False)
        with pytest.raises(PlanError, match="DIST0233"):
            search(_gpt, 4, QUICK, batch=8, folder=folder, compare=("it", refused))
        before = (tmp_path / "rows.jsonl").read_text()
        with pytest.raises(UsageError, match=r"DIST0151 .*other settings \(model\)"):
            Folder(tmp_path, {"model": "b"}, resume=False)
        folder = Folder(tmp_path, {}, resume=False)
        search(_gpt, 4, QUICK, batch=8, folder=folder)
        assert (tmp_path / "rows.jsonl").read_text() == before

    @pytest.mark.parametrize("name", ["search.json", "1.plan.json"])
    def test_files_of_the_user_are_not_replaced(self, tmp_path, name):
        folder = Folder(tmp_path, {}, resume=False)
        folder.finish(search(_gpt, 4, QUICK, batch=8, folder=folder))
        Folder(tmp_path, {}, resume=True)
        assert (tmp_path / "2.plan.json").exists()
        (tmp_path / name).write_text("mine")
        with pytest.raises(OutputError, match=f"DIST0160 -o: .* holds {name}"):
            Folder(tmp_path, {}, resume=True)
        folder = Folder(tmp_path, {}, resume=False, force=True)
        folder.finish(search(_gpt, 4, QUICK, batch=8, folder=folder, top=1))
        assert not (tmp_path / "2.plan.json").exists()
        Folder(tmp_path, {}, resume=True)

    def test_what_is_written_can_be_read(self, tmp_path):
        folder = Folder(tmp_path, {}, resume=False)
        result = search(_gpt, 4, QUICK, batch=8, folder=folder)
        paths = folder.finish(result)
        data = json.loads((tmp_path / "search.json").read_text())
        assert [row["time_s"] for row in data["plans"]] == [each.time_s for each in result.plans]
        assert [Plan.load(path) for path in paths[1:]] == [each.plan for each in result.plans]


class TestStageDevices:
    """Pipelines whose stages have different numbers of devices."""

    @staticmethod
    def model(batch: int):
        return td.zoo.gpt(size="tiny", layers=4, batch=batch, vocab=4096)

    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        """The vocabulary is behind the last layer; a mesh of three devices is left out."""
        rules = Constraints(
            ("pp", "dp", "tp"), {"dp": 2, "tp": 2}, micro_batches=(1, 2), stage_devices="any"
        )
        return search(cls.model, 3, QUICK, batch=16, train=ADAM, constraints=rules, top=9)

    def test_they_win_where_layers_are_uneven(self, found):
        best = found.plans[0].row.candidate
        assert [math.prod(n for _, n in axes) for axes in best.ranks] == [1, 2]
        equal = [plan for plan in found.plans if not plan.row.candidate.ranks]
        assert equal and equal[0].time_s > found.plans[0].time_s

    def test_the_plan_can_be_deployed(self, found, tmp_path):
        passed = found.plans[0].plan
        model = self.model(16 // passed.schedule.micro_batches)
        step = td.train_step(model, schedule=passed.schedule, **ADAM)
        local = td.distribute(step, td.planning.with_updates(step, passed), system=QUICK)
        inputs = draw_inputs(step, 3)
        want = td.run(local, inputs, engine="virtual")
        deployed = td.deploy(local, tmp_path / "deployed")
        files = sorted(path.name for path in (tmp_path / "deployed").glob("*.so"))
        assert files == ["main_mesh0.so", "main_mesh1.so"]
        passed = deployed.run(inputs, engine="threads")
        assert len(passed) == len(want) > 2
        assert all(same_bits(a, b) for a, b in zip(passed, want, strict=True))

    def test_the_plan_is_complete_and_runs_as_one_device(self, found):
        best = found.plans[0]
        inputs = Plan.from_dict(best.plan.to_dict())
        assert [mesh.axes for mesh in inputs.meshes] == [{"tp": 2}, {"dp": 1}]
        assert inputs.schedule.meshes == ("mesh1", "mesh0")
        model = self.model(16 // inputs.schedule.micro_batches)
        step = td.train_step(model, schedule=inputs.schedule, **ADAM)
        plan = td.planning.with_updates(step, inputs)
        program = td.export(td.distribute(step, plan, system=QUICK))
        assert td.simulate(program, QUICK).time_s == best.time_s
        report = td.verify(step, plan, engine="virtual")
        assert report.equal
        kinds = {each.kind for each in report.collectives}
        assert "send" in kinds and len(kinds) > 1

    def test_no_time_is_below_what_is_proved(self, found):
        solved = [row for row in found.rows if row.time_s is not None]
        assert len(solved) >= 3
        assert all(0 < row.least_s < row.time_s for row in solved)

    def test_they_are_found_where_no_equal_stages_are(self):
        rules = Constraints(
            ("pp", "dp", "tp"), {"tp": 2}, {"pp": 2, "dp": 1}, micro_batches=(4,),
            stage_devices="any",
        )  # fmt: skip
        result = search(self.model, 3, QUICK, batch=16, train=ADAM, constraints=rules, top=9)
        assert result.plans and all(plan.row.candidate.ranks for plan in result.plans)

    def test_sizes_are_powers_of_two_and_whole_nodes(self):
        rules = Constraints(("pp", "dp", "tp"), inside_node=("tp",))
        uneven = Uneven(Enumeration(rules, 40, A100, 40, stages=True), None, None)
        kinds = uneven._kinds(2, 16)
        assert {math.prod(n for _, n in axes) for axes in kinds} == {1, 2, 4, 8, 16, 32}
        assert (("dp", 3), ("tp", 8)) not in kinds and (("dp", 16), ("tp", 2)) in kinds

    def test_meshes_begin_at_multiples_of_their_sizes(self):
        single, four = (("dp", 1),), (("dp", 2), ("tp", 2))
        candidate = Candidate(single, 4, 8, ranks=(single, four, (("tp", 2),), single))
        meshes = {mesh.name: (mesh.start, dict(mesh.axes)) for mesh in candidate.meshes}
        assert meshes == {
            "mesh0": (0, {"dp": 2, "tp": 2}), "mesh1": (4, {"tp": 2}), "mesh2": (6, {"dp": 1})
        }  # fmt: skip
        assert candidate.schedule.meshes == ("mesh2", "mesh0", "mesh1", "mesh2")

    def test_other_words_are_refused(self):
        with pytest.raises(UsageError, match='DIST0152 stage_devices: there is no value "all"'):
            Constraints(stage_devices="all")
        keep = Plan.from_dict({"schema_version": 1, "mesh": {"tp": 4}, "rules": []})
        with pytest.raises(UsageError, match="DIST0151 stage_devices"):
            Constraints(keep=keep, stage_devices="any")


@pytest.mark.parametrize("train", [None, {"optimizer": "adam"}])
def test_a_system_that_fuses_attention_searches_the_module_that_is_simulated(train):
    """The plan's labels fit the module that ``td.analyze`` makes for this system."""
    result = search(
        lambda batch: td.zoo.build("llama3", {"size": "tiny", "batch": str(batch)}),
        4, "h100", batch=8, train=train, constraints=Constraints(recompute=("none",)),
    )  # fmt: skip
    best = result.plans[0]
    analysis = td.analyze(
        "zoo:llama3?size=tiny,batch=8", plan=best.plan, system="h100", train=train or False
    )
    assert analysis.simulation.time_s == best.simulated.time_s
    assert "dist.attention(" in analysis.module.script()

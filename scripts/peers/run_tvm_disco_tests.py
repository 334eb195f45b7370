# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run TVM's own Disco tests on CPUs, with our native collectives in place of NCCL.

``python scripts/peers/run_tvm_disco_tests.py PATH_TO_TVM [FILES...] [PYTEST OPTIONS...]`` where
PATH_TO_TVM is a checkout of apache/tvm (its ``tests/python/disco`` is read, nothing of it is copied
here); FILES are names such as ``test_ccl.py``, by default those that need no GPU kernels.

While the tests run, ``tvm.cuda`` is the CPU, a GPU target is LLVM without GPU schedules, and
``init_ccl`` joins the workers in a fabric of ours. Prints how many tests passed per kind of
session. TVM's ``ProcessSession`` needs ``psutil``.
"""

from __future__ import annotations

import collections
import os
import sys
from pathlib import Path
from typing import Any

import pytest

FILES = ("test_ccl.py", "test_session.py")
_WORKER_ARGUMENTS = 6
GPU_ONLY = (
    "test_callback.py",
    "test_custom_allreduce.py",
    "test_loader.py",
    "test_nvshmem.py",
)


TESTS_OWN = "runtime.disco.nccl.test_"
"""Functions that TVM's NCCL library has for its tests alone."""


def _register_tests_own() -> None:
    """Register them: groups of two among four workers hand a tensor on."""
    import tvm_ffi

    def call(name: str, *args: Any) -> None:
        tvm_ffi.get_global_func(f"runtime.disco.{name}")(*args)

    def rank() -> int:
        return int(tvm_ffi.get_global_func("runtime.disco.worker_rank")())

    def to_next_group(x: Any) -> None:
        call("send_to_next_group" if rank() < 2 else "recv_from_prev_group", x)

    def from_2_to_0(x: Any) -> None:
        if rank() == 2:
            call("send_to_worker", x, 0)
        elif rank() == 0:
            call("recv_from_worker", x, 2)

    functions = {
        "send_to_next_group_recv_from_prev_group": to_next_group,
        "worker2_sends_to_worker0": from_2_to_0,
    }
    for name, function in functions.items():
        tvm_ffi.register_global_func(TESTS_OWN + name, function, override=True)


def _swap_sessions(disco: Any) -> None:
    """Make sessions join our fabric where they would start NCCL."""
    from tvm_distir.execution.runtime.collectives import disco as disco_ccl

    def made(base: Any, **options: Any) -> Any:
        class Joined(base):  # type: ignore[misc]
            def __init__(self, num_workers: int, num_groups: int = 1) -> None:
                super().__init__(num_workers, num_groups, **options)
                disco_ccl.join(self, num_workers, num_groups)

            def init_ccl(self, ccl: str, *devices: int) -> None:
                """Nothing: the workers have met."""

            def shutdown(self) -> None:
                """Nothing: TVM aborts when a session is shut down and then dropped."""

        Joined.__name__ = base.__name__
        return Joined

    disco.ThreadedSession = made(disco.ThreadedSession)
    disco.ProcessSession = made(disco.ProcessSession, entrypoint=Path(__file__).stem)


def _swap_devices() -> None:
    """Give the CPU out as a GPU, without GPU schedules."""
    import tvm
    import tvm.testing
    from tvm.s_tir import dlight

    host = tvm.target.Target("llvm")
    tvm.cuda = tvm.cpu
    tvm.target.Target.from_device = staticmethod(lambda device: host)
    dlight.ApplyDefaultSchedule = lambda *rules: tvm.transform.Sequential([])
    tvm.testing.run_with_gpu_lock = lambda body, *args: body(*args)
    try:
        from tvm.testing import env
    except ImportError:
        return
    for name in ("has_cuda", "has_gpu", "has_multi_gpu", "has_nccl"):
        if hasattr(env, name):
            setattr(env, name, lambda *_: True)


class OnCpus:
    """A pytest plugin that swaps sessions and devices, and counts."""

    def __init__(self) -> None:
        self.outcomes: collections.Counter[tuple[str, str]] = collections.Counter()

    def pytest_configure(self) -> None:
        """Swap before the tests are imported."""
        import tvm_ffi

        from tvm_distir.support.disco import repair_disco

        tvm_ffi.register_global_func("runtime.disco.compiled_ccl", lambda: "nccl", override=True)
        here = str(Path(__file__).resolve().parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
        _register_tests_own()
        _swap_sessions(repair_disco())
        _swap_devices()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        """Leave out sessions over sockets, which start workers of their own on other machines."""
        config.hook.pytest_deselected(items=[i for i in items if "socket" in i.name])
        items[:] = [i for i in items if "socket" not in i.name]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count by session kind."""
        if report.when == "call" or report.outcome != "passed":
            kind = "processes" if "ProcessSession" in report.nodeid else "threads"
            if "Session" not in report.nodeid:
                kind = "one session of its own"
            self.outcomes[kind, report.outcome] += 1


def main() -> int:
    """Run the tests; 2 when the checkout is not one. Also Disco's worker process."""
    if len(sys.argv) == _WORKER_ARGUMENTS and all(a.isdigit() for a in sys.argv[1:]):
        from tvm_distir.execution.runtime.collectives import disco as disco_ccl

        _register_tests_own()
        disco_ccl.main()
        return 0
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]) / "tests" / "python" / "disco"
    if not folder.is_dir():
        print(f"{folder} is missing: is this a checkout of TVM?", file=sys.stderr)
        return 2
    plugin = OnCpus()
    given = [a for a in sys.argv[2:] if a.endswith(".py")] or FILES
    files = [str(folder / name) for name in given if (folder / name).is_file()]
    files += [a for a in sys.argv[2:] if not a.endswith(".py")]
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={folder}"]
    code = pytest.main([*options, *files], plugins=[plugin])
    for (kind, outcome), count in sorted(plugin.outcomes.items()):
        print(f"{kind}: {count} {outcome}")
    print(f"not run, as they compile for GPUs or test their memory: {', '.join(GPU_ONLY)}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

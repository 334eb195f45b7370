#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Two hosts as network namespaces: a served step by torchrun and mpirun, and a pulled cable.

Usage: scripts/checks/two_hosts.py [--mpiexec MPIEXEC] [--timeout-s 8]
Needs root, `ip` of iproute2 (Debian: apt install iproute2), torch, and MPICH for the second part.

Each namespace is a host: its only interfaces are a loopback and an end of a virtual cable, and its
processes have a separate copy of the deployed folder and a separate folder for checkpoints. A
training step with two processes per host runs to its end, and its losses are compared with those of
one host. While it runs, the addresses on which its processes listen are read from ``/proc``: ranks
may listen on loopback and on the cable; the launcher and torch's store are named apart. ``mpirun``
starts it with the engines torch and mpi. Then it runs again with ``torchrun`` and the cable is
pulled in the middle: every rank must end with a cause within the timeout, and no file may be left
half written. Prints a line per check. Exits 1 when one fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import listening_ports as ports_of
import numpy as np

import tvm_distir as td
from tvm_distir.execution.deployment.checkpoint_reading import read_checkpoint
from tvm_distir.execution.runtime.program.inputs import input_ports
from tvm_distir.execution.runtime.program.lowered import LoweredProgram
from tvm_distir.execution.verification.random_inputs import draw_inputs
from tvm_distir.planning import strategies as strategy

ROOT = Path(__file__).resolve().parents[2]
HOSTS = {"tvm-distir-a": "10.77.0.1", "tvm-distir-b": "10.77.0.2"}
CABLE = "cable"
PORT = 29517
STEPS = 8
CAUSE = re.compile(r"^(DIST06\d\d [^\n]*)", re.MULTILINE)


def shell(*words: str, check: bool = True) -> None:
    """Run a command of the system."""
    subprocess.run(words, check=check, capture_output=not check)


def make_hosts() -> None:
    """Make the namespaces and the cable between them."""
    remove_hosts()
    for name in HOSTS:
        shell("ip", "netns", "add", name)
        shell("ip", "-n", name, "link", "set", "lo", "up")
    first, second = HOSTS
    shell("ip", "-n", first, "link", "add", CABLE, "type", "veth", "peer", CABLE, "netns", second)
    for name, address in HOSTS.items():
        shell("ip", "-n", name, "address", "add", f"{address}/24", "dev", CABLE)
        shell("ip", "-n", name, "link", "set", CABLE, "up")


def remove_hosts() -> None:
    """Remove the namespaces, if there are any."""
    for name in HOSTS:
        shell("ip", "netns", "delete", name, check=False)


def set_cable(state: str) -> None:
    """Pull or plug the cable."""
    shell("ip", "-n", next(iter(HOSTS)), "link", "set", CABLE, state)


def deploy(folder: Path) -> Path:
    """Deploy a training step for four devices; returns the file of its data."""
    net = td.zoo.gpt(vocab=19, layers=1, hidden=16, heads=2, seq=4, batch=4)
    mod = td.train_step(net, optimizer="adamw")
    values = draw_inputs(mod, seed=1)
    plan = strategy.make_plan(mod, "zero:stage=3+megatron", {"dp": 2, "tp": 2})
    dist = td.distribute(mod, plan)
    ports = input_ports(LoweredProgram(dist).entries)
    names = [p.name for i, p in ports.items() if i >= 2 and not p.name.endswith((".m", ".v"))]
    position = {p.name: i for i, p in ports.items()}
    weights = {name: values[position[name]] for name in names if name != "step"}
    td.deploy(dist, folder / "served", weights, hosts=2)
    rng = np.random.default_rng(0)
    data = {ports[i].name: rng.integers(0, 19, (STEPS, 4, 4)).astype("int32") for i in (0, 1)}
    np.savez(folder / "steps.npz", **data)
    return folder / "steps.npz"


class Host:
    """A namespace with its own files.

    Parameters
    ----------
    name : str
    folder : Path
        The folder of this host.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        shutil.copytree(folder / "served", self.folder / "served")
        shutil.copy(folder / "steps.npz", self.folder)

    def words(self, *more: str) -> list[str]:
        """The arguments of ``tvm-distir run --job``."""
        return [
            *("-m", "tvm_distir_command", "run", "--job", str(self.folder / "served")),
            *("--steps", str(self.folder / "steps.npz")),
            *("--checkpoints", str(self.folder / "kept"), "-o", str(self.folder / "y.npz")),
            *more,
        ]

    def environment(self) -> dict[str, str]:
        """The environment of its processes."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "GLOO_SOCKET_IFNAME": CABLE,
            "TP_SOCKET_IFNAME": CABLE,
            "OMP_NUM_THREADS": "1",
        }

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command on this host."""
        with open(self.folder / "log", "wb") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def text(self) -> str:
        """What its processes printed."""
        return (self.folder / "log").read_text(errors="replace")


def torchrun(hosts: list[Host], *more: str) -> list[subprocess.Popen[bytes]]:
    """Start an agent of torchrun with two processes on each host."""
    head = next(iter(HOSTS.values()))
    return [
        host.start(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--nproc-per-node", "2", "--node-rank", str(number)),
                *("--master-addr", head, "--master-port", str(PORT)),
                *host.words(*more),
            ]
        )
        for number, host in enumerate(hosts)
    ]


def mpirun(mpiexec: str, host: Host, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start MPICH's mpiexec on the first host; it reaches both by a launcher script."""
    launcher = folder / "reach"
    cases = "".join(f"{ip}) name={name};;\n" for name, ip in HOSTS.items())
    launcher.write_text(
        f'#!/bin/sh\n[ "$1" = -x ] && shift\ncase "$1" in\n{cases}esac\nshift\n'
        'exec ip netns exec "$name" sh -c "$*"\n'
    )
    launcher.chmod(0o755)
    addresses = list(HOSTS.values())
    command = [mpiexec, "-launcher", "ssh", "-launcher-exec", str(launcher), "-iface", CABLE]
    command += ["-hosts", ",".join(addresses), "-ppn", "2", "-n", "4"]
    command += ["-genv", "MASTER_ADDR", addresses[0], "-genv", "MASTER_PORT", str(PORT + 1)]
    return host.start([*command, sys.executable, *host.words(*more)])


def host_sockets(name: str) -> Iterator[tuple[str, str]]:
    """Yield who listens on a host, ``ranks``, ``store`` (torch's) or ``launcher``, and where.

    What a rank inherits from its launcher is the launcher's.
    """
    inherited: set[str] = set()
    held: dict[str, str] = {}
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    for pid in found.stdout.split():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            sockets = ports_of.listening_sockets(pid)
        except OSError:  # it has ended
            continue
        mine = {key: sockets[key] for key in ports_of.open_sockets(int(pid)) & sockets.keys()}
        is_rank = "tvm_distir_command" in words and "torch.distributed.run" not in words
        if not is_rank or not Path(words[0]).name.startswith("python"):
            inherited |= mine.keys()
        held |= mine
    for inode, where in held.items():
        is_store = where.endswith((f":{PORT}", f":{PORT + 1}"))
        yield "store" if is_store else "launcher" if inode in inherited else "ranks", where


def check_ports(label: str, processes: list[subprocess.Popen[bytes]], limit_s: float) -> bool:
    """Read where the processes of a job listen until its end; return whether ranks may."""
    seen: dict[tuple[str, str], set[str]] = {(name, "ranks"): set() for name in HOSTS}
    latest_s = time.monotonic() + limit_s
    while any(p.poll() is None for p in processes) and time.monotonic() < latest_s:
        for name in HOSTS:
            for who, where in host_sockets(name):
                seen.setdefault((name, who), set()).add(where.rpartition(":")[0])
        time.sleep(0.05)
    good = True
    for (name, who), found in sorted(seen.items()):
        inside = all(where == HOSTS[name] or ports_of.is_loopback(where) for where in found)
        shown = ", ".join(sorted(found)) or "none"
        good &= report(f"{label}, {name}, {who} listen on", inside or who != "ranks", shown)
    return good


def wait(processes: list[subprocess.Popen[bytes]], limit_s: float) -> list[int | None]:
    """Wait for processes; returns their exit codes, None for those that were ended by force."""
    codes: list[int | None] = []
    latest_s = time.monotonic() + limit_s
    for process in processes:
        try:
            codes.append(process.wait(max(0.1, latest_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            codes.append(None)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
    return codes


def report(label: str, is_good: bool, detail: str) -> bool:
    """Print the line of a check."""
    print(f"{'ok   ' if is_good else 'WRONG'} {label}: {detail}", flush=True)
    return is_good


def pulled(hosts: list[Host], timeout_s: float) -> bool:
    """Pull the cable; return whether all ranks end with a cause, and all files are whole."""
    more = ["--repeat", "100000", "--every", "50", "--timeout-s", str(timeout_s)]
    processes = torchrun(hosts, *more)
    latest_s = time.monotonic() + 240
    while "step 60:" not in hosts[0].text() and time.monotonic() < latest_s:
        time.sleep(0.2)
    set_cable("down")
    begun_s = time.monotonic()
    causes: list[str] = []
    while len(causes) < 4 and time.monotonic() - begun_s < 4 * timeout_s + 20:
        time.sleep(0.2)
        causes = [
            c for host in hosts for c in re.findall(r"^(DIST06\d\d [^\n]*)", host.text(), re.M)
        ]
    took_s = time.monotonic() - begun_s
    wait(processes, 5.0)
    set_cable("up")
    good = report("pulled cable", len(causes) == 4, f"{len(causes)} of 4 ranks ended with a cause "
                  f"after {took_s:.1f} s (timeout {timeout_s:g} s)")  # fmt: skip
    for cause in causes:
        print(f"      {cause[:170]}")
    parts = [p for host in hosts for p in (host.folder / "kept").rglob("*.part")]
    steps = [read_checkpoint(host.folder / "kept").head.step for host in hosts]
    return good & report(
        "files", not parts, f"{len(parts)} half written, last whole checkpoints {steps}"
    )


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mpiexec", default=shutil.which("mpiexec"))
    parser.add_argument("--timeout-s", type=float, default=8.0)
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="tvm-distir-hosts-") as name:
        folder = Path(name)
        deploy(folder)
        make_hosts()
        try:
            losses: dict[str, np.ndarray] = {}
            hosts = [Host(host, folder) for host in HOSTS]
            started = torchrun(hosts, "--timeout-s", "60")
            good &= check_ports("torchrun", started, 240)
            codes = wait(started, 5)
            good &= report("torchrun, 2 hosts x 2", codes == [0, 0], f"exit codes {codes}")
            losses["torchrun"] = np.load(hosts[0].folder / "y.npz")["output0"]
            for engine in ("torch", "mpi") if options.mpiexec else ():
                label = f"mpirun, engine {engine}"
                hosts = [Host(host, folder) for host in HOSTS]
                more = ("--timeout-s", "60", "--engine", engine)
                started = [mpirun(options.mpiexec, hosts[0], folder, *more)]
                good &= check_ports(label, started, 240)
                codes = wait(started, 5)
                good &= report(f"{label}, 2 hosts x 2", codes == [0], f"exit codes {codes}")
                if codes != [0]:
                    print(hosts[0].text()[-2000:])
                    return 1
                losses[label] = np.load(hosts[0].folder / "y.npz")["output0"]
            if not options.mpiexec:
                print("mpirun is not tried: there is no mpiexec on PATH, and no --mpiexec")
            hosts = [Host(host, folder) for host in HOSTS]
            good &= pulled(hosts, options.timeout_s)
        finally:
            remove_hosts()
        program, data = td.load(folder / "served"), np.load(folder / "steps.npz")
        zeros = {p.name: np.zeros(p.shape, p.dtype) for p in program.inputs}
        first = {key: data[key][0] for key in data.files}
        loss = program.run({**zeros, **first}, engine="threads")[0]
        for launcher, values in losses.items():
            same = float(values[0]) == float(loss)
            good &= report(f"{launcher}, first loss", same, f"{values[0]:.8g}, threads {loss:.8g}")
            equal = np.array_equal(values, losses["torchrun"])
            good &= report(f"{launcher}, all losses", bool(equal), f"{values[-1]:.8g} at the end")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the commands that start a deployment in a serving engine.

``engine_flags.json`` has the options of each engine for the facts of a server: the words of a fact,
or those of each of its values. A word ``--NAME`` is an option, ``NAME=value`` a variable of the
environment, and ``name.name=value`` a setting of the file of settings. What is not in the table an
engine cannot say.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tvm_distir.planning.plan_export.exported_plan import unsupported
from tvm_distir.support import UsageError, nearest, shipped_data

from .engine_server import EngineServer
from .serving_run import ServingSetup
from .workload import Workload

_TABLE: Mapping[str, Any] = shipped_data(__file__, "engine_flags.json")
ENGINES: Mapping[str, Mapping[str, Any]] = _TABLE["engines"]
"""The names, the command and the options of each engine."""
_PORT, _CHANNEL, _CHANNELS = 8000, 20000, 100
"""The first port, the first of those that send caches, and how many of these a server may take."""


@dataclass(frozen=True)
class StartedServer:
    """A server on the devices of a node, and the shell command that starts it."""

    phase: str
    system: str
    node: int
    devices: tuple[int, ...]
    command: str


@dataclass(frozen=True)
class EngineCommands:
    """Commands of an engine.

    Attributes
    ----------
    engine : str
        The engine, with the version whose options these are.
    router : str
        How a router sends requests to the servers.
    router_command : str
        That of the router, where it is part of the engine.
    servers : tuple of StartedServer
    """

    engine: str
    router: str
    router_command: str
    servers: tuple[StartedServer, ...]

    def text(self) -> str:
        """Return the commands as lines of a shell script."""
        lines, node = [f"# {self.engine}"], ""
        router = self.router_command or f"# a router in front of the servers: {self.router}"
        if self.router_command or len(self.servers) > 1:
            lines.append(router)
        for server in self.servers:
            phase = f", {server.phase}" if server.phase else ""
            here = f"# node {server.node} of {server.system}{phase}"
            lines += [here] * (here != node) + [server.command]
            node = here
        return "\n".join(lines)


def engine_table(engine: str) -> Mapping[str, Any]:
    """Return the table of an engine, with that of the engine it extends.

    Raises
    ------
    UsageError
        DIST0152 there is no such engine.
    """
    if engine not in ENGINES:
        problem, remedy = f'there is no engine "{engine}"', nearest(engine, ENGINES)
        raise UsageError("DIST0152", problem, location="--flags", remedy=remedy)
    table = ENGINES[engine]
    base = ENGINES[table.get("extends", engine)]
    return {**base, **table, "options": {**base["options"], **table["options"]}}


def engine_commands(setup: ServingSetup, workload: Workload | str, engine: str) -> EngineCommands:
    """Write the commands that start the servers of a deployment.

    Parameters
    ----------
    setup : ServingSetup
    workload : Workload or str
        The lengths of its requests bound those that servers accept.
    engine : str
        One of :data:`ENGINES`.

    Raises
    ------
    PlanError
        DIST0241 for what the engine cannot say.
    UsageError
        DIST0152 there is no such engine.
    """
    work = Workload.parse(workload) if isinstance(workload, str) else workload
    table, used, servers = engine_table(engine), dict[str, int](), list[StartedServer]()
    for part, count, phase in setup.parts:
        facts, system = EngineServer.of(part, work, phase), part.served.system
        size, most = part.served.devices, system.intra_node.devices_per_node
        if size > most:
            problem = f"{part.served.plan_text} takes {size} devices, and a node has {most}"
            remedy = "Use a mesh within a node, or start the engine on several by hand."
            raise unsupported(problem, remedy, "--flags")
        for _ in range(count):
            first = used.get(system.name, 0)
            first += -first % most if first % most + size > most else 0
            used[system.name] = first + size
            devices = tuple(range(first % most, first % most + size))
            command = server_command(table, facts, len(servers))
            if size < most:
                command = f"CUDA_VISIBLE_DEVICES={','.join(map(str, devices))} {command}"
            servers.append(StartedServer(phase, system.name, first // most, devices, command))
    router = table.get("routers", {}).get(setup.router, "")
    return EngineCommands(table["name"], setup.router, router, tuple(servers))


def server_command(table: Mapping[str, Any], facts: EngineServer, number: int) -> str:
    """Return the shell command of a server; its number decides its ports.

    Raises
    ------
    PlanError
        DIST0241 for a fact that the table does not have.
    """
    ports = {"port": _PORT + number, "channel": _CHANNEL + _CHANNELS * number}
    numbers = {**facts.numbers, **ports}
    words, settings = list[str](), dict[str, Any]()
    for word in [*table["command"].split(), *_option_words(table, facts)]:
        name, equals, value = word.partition("=")
        if equals and name.isupper():
            words.insert(0, f"{name}={value.format(**numbers)}")
        elif equals:
            outer, _, inner = name.rpartition(".")
            part = settings.setdefault(outer, {}) if outer else settings
            part[inner] = _setting(value.format(**numbers))
        else:
            words.append(shlex.quote(word.format(**numbers)))
    if settings:
        words += [table["settings"], f"<(echo {shlex.quote(json.dumps(settings))})"]
    return " ".join(words)


def _setting(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _option_words(table: Mapping[str, Any], facts: EngineServer) -> Iterator[str]:
    """Yield the words of all facts that have not their default."""
    if facts.tokens < facts.requests * table.get("tokens_of_a_request", 0):
        problem = (
            f"{table['name']} has no steps of {facts.tokens} tokens for {facts.requests} requests"
        )
        raise unsupported(problem, "Give --scheduler more tokens=, or fewer requests=.", "--flags")
    for name, remedy in _TABLE["remedies"].items():
        value, known = getattr(facts, name), table["options"].get(name, {})
        if value == getattr(EngineServer, name):
            continue
        words = known if isinstance(known, str) else known.get(str(value))
        if words is None:
            more = str(value).partition(" ")[2]
            others = [key.partition(" ")[0] for key in known if key.partition(" ")[2] == more]
            problem = f"{table['name']} has no option for the {name} {value}"
            raise unsupported(problem, remedy.format(known=", ".join(others) or "none"), "--flags")
        yield from words.split()

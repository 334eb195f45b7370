# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read the command of a server back by the table of its engine."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from tvm_distir.planning.serving.engine_server import EngineServer

_SETTINGS = re.compile(r" --\w+ <\(echo (.*)\)$")


def pairs_of(words: list[str]) -> dict[str, str]:
    """Return options, variables and settings with their values; the model has no name."""
    pairs, last = {}, ""
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            pairs[word], last = "", word
        elif equals and re.fullmatch(r"[\w.]+", name):
            pairs[name], last = value, ""
        else:
            pairs[last], last = word, ""
    return pairs


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}={value if isinstance(value, str) else json.dumps(value)}"


def words_of(command: str) -> list[str]:
    """Return the words of a command, with the settings of its file as those of the table."""
    settings = _SETTINGS.search(command)
    if settings is None:
        return shlex.split(command)
    [text] = shlex.split(settings[1])
    return [*shlex.split(command[: settings.start()]), *_flat(json.loads(text))]


def _matched(template: str, found: Mapping[str, str]) -> dict[str, str] | None:
    """Return the numbers of a template, if a command has all of its words."""
    pairs = pairs_of(template.split())
    if not all(found.get(k) == v or (k in found and v[:1] == "{") for k, v in pairs.items()):
        return None
    return {value[1:-1]: found[name] for name, value in pairs.items() if value[:1] == "{"}


def read_server(table: Mapping[str, Any], command: str) -> EngineServer:
    """Read a command; of schedulers with the same options it is the first."""
    found = pairs_of(words_of(command))
    facts = _matched(table["command"], found) or {}
    for name, known in table["options"].items():
        choices = {"": known} if isinstance(known, str) else known
        read = {value: _matched(template, found) for value, template in choices.items()}
        fitting = [value for value, numbers in read.items() if numbers is not None]
        best = max(fitting, key=lambda value: len(choices[value].split()), default=None)
        if best is not None and (choices[best] or name == "scheduler"):
            facts |= {name: best} if best else {}
            facts |= read[best] or {}
            found = {k: v for k, v in found.items() if k not in pairs_of(choices[best].split())}
    parts, stages = (int(facts.get(name, 1)) for name in ("experts", "stages"))
    for derived, name, scale in (
        ("ranks", "tensor", 1 / parts), ("all_tokens", "tokens", 1 / parts),
        ("all_requests", "requests", 1 / parts), ("stage_requests", "requests", stages),
    ):  # fmt: skip
        if derived in facts:
            facts[name] = str(round(int(facts[derived]) * scale))
    shares = tuple(float(value) for name, value in facts.items() if name.startswith("memory["))
    kinds = {name: type(getattr(EngineServer, name, "")) for name in EngineServer.__annotations__}
    known = {name: kinds[name](facts[name]) for name in kinds if name in facts}
    return EngineServer(**{**known, "memory": shares})

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Name the sizes of the zoo that are published models: ``hf:Qwen/Qwen3-8B``."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping

from tvm_distir.support import ModelError, nearest, shipped_data

HUB = "hf:"

PUBLISHED: Mapping[str, str] = shipped_data(__file__, "published.json")
"""The model of the zoo of each published name. Names are read in any case, with or without the
publisher, hyphens and underscores, and without the ending of a variant of the same sizes."""
ALIASES: Mapping[str, str] = shipped_data(__file__, "published_aliases.json")
"""The published name of other names in lowercase, such as ``llama3``."""
_VARIANT = re.compile(r"-(hf|instruct|chat|it|pt|base|thinking|\d{4}|instruct-\d{4})$")
"""Endings of names of models of the same sizes: of other weights, or of a later month."""


@functools.cache
def published_names() -> dict[str, str]:
    """Return the names of the hub by what a MODEL string may write: lowercase, owner optional."""
    names = {full.lower(): full for full in PUBLISHED}
    names.update({full.lower().partition("/")[2]: full for full in PUBLISHED})
    return {**ALIASES, **names}


def _letters(name: str) -> str:
    """Return the letters and digits of a name, by which it is known: ``llama3.18b``."""
    return re.sub(r"[\s_-]+", "", name.lower())


@functools.cache
def _by_letters() -> dict[str, str]:
    names = published_names()
    plain = {_letters(_VARIANT.sub("", known)): names[known] for known in reversed(names)}
    return {**plain, **{_letters(known): names[known] for known in reversed(names)}}


@functools.cache
def _owners() -> frozenset[str]:
    return frozenset(full.lower().partition("/")[0] for full in PUBLISHED)


def _found(name: str) -> str | None:
    """Return the published name that a name means."""
    lower = name.lower()
    owner, _, rest = lower.partition("/")
    names = [lower, *([rest] if owner in _owners() else [])]
    spelled = [text for name in names for text in (name, _VARIANT.sub("", name))]
    return next((known for text in spelled if (known := _by_letters().get(_letters(text)))), None)


def is_published(spec: str) -> bool:
    """Return whether a MODEL string is a published name, with ``hf:`` or where no file has it."""
    name = spec.partition("?")[0]
    return spec.startswith(HUB) or (_found(name) is not None and not os.path.exists(name))


def zoo_spec(spec: str) -> str:
    """Return the MODEL string of the zoo for ``hf:NAME?key=value,...``; others unchanged.

    A key replaces that of the published model.

    Raises
    ------
    ModelError
        DIST0330 for a name that is not in the list.
    """
    if not is_published(spec):
        return spec
    model, (_, mark, keys) = PUBLISHED[published_name(spec)], spec.partition("?")
    stated = {item.partition("=")[0].strip() for item in keys.split(",")}
    name, _, sizes = model.partition("?")
    others = [item for item in sizes.split(",") if item.partition("=")[0] not in stated]
    return f"zoo:{name}?{','.join([*others, *([keys] if mark else [])])}"


def published_name(spec: str) -> str:
    """Return the published name of ``hf:NAME?key=value,...``; raises as :func:`zoo_spec`."""
    name = spec.removeprefix(HUB).partition("?")[0]
    known = _found(name)
    if known is None:
        names = published_names()
        problem = "the list of published models does not have this name"
        family = [n for n in names if "/" not in n and _letters(n).startswith(_letters(name))]
        remedy = f"Of this family: {', '.join(family)}." if family else nearest(name.lower(), names)
        remedy += " Or give the path of its config.json."
        raise ModelError("DIST0330", problem, location=f"{HUB}{name}", remedy=remedy)
    return known

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Read profiles, which describe the kernels of a backend as data (``data/*.json``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tvm_distir.core import KERNEL_CLASSES
from tvm_distir.support import HardwareError, JsonValue, nearest, read_json

SCHEMA_VERSION = 1
DATA = Path(__file__).parent / "data"
ISSUERS = ("any", "python", "autograd")
SUM_DTYPES = ("float32", "weight")
ATTENTIONS = ("written", "fused")

_TOP = (
    "schema_version", "name", "description", "casts", "absorb", "once", "bucket", "split_sends",
    "blocking", "accumulates", "sums", "kernels", "attention",
)  # fmt: skip
_OPTIONAL = _TOP[2:]
_RULE = (
    "name", "anchors", "members", "issue", "batch_multiple", "launches_else", "extra_bytes",
    "class",
)  # fmt: skip
_RULE_OPTIONAL = _RULE[2:]


@dataclass(frozen=True)
class FusionRule:
    """Rule of a kernel: an anchor, and all members connected to it.

    Attributes
    ----------
    name : str
        The name of the kernel.
    anchors, members : tuple of str
        Names of ops, or patterns of them (``dropout_kernel*``). ``relax.add:scalar`` is an add in
        which an operand has a single element.
    issue : str
        The issuer of the anchor: ``python``, then of the members too; ``autograd``; ``any``.
    batch_multiple : int
        The product of all dims but the last two of the anchor's first operand must be a multiple
        of it; otherwise each of the ops is a kernel, casts included.
    launches_else : int
        The number of additional launches by the host in that case.
    extra_bytes : int
        The bytes per element that other kernels beside this kernel read and write.
    kernel_class : str
        Class of the kernel; empty: by its ops.
    """

    name: str
    anchors: tuple[str, ...]
    members: tuple[str, ...] = ()
    issue: str = "any"
    batch_multiple: int = 1
    launches_else: int = 0
    extra_bytes: int = 0
    kernel_class: str = ""

    def begins(self, op: str) -> bool:
        """Return whether an op is an anchor."""
        return any(fnmatchcase(op, pattern) for pattern in self.anchors)

    def takes(self, op: str, scalar: bool) -> bool:
        """Return whether an op is a member (``scalar``: an operand has a single element)."""
        names = (op, f"{op}:scalar") if scalar else (op,)
        return any(fnmatchcase(name, pattern) for pattern in self.members for name in names)


@dataclass(frozen=True)
class Profile:
    """Profile of how a backend groups ops into kernels.

    Attributes
    ----------
    name, description : str
    casts : bool
        Casts between floats run inside the kernels that read or write the value, which lies in
        memory in the narrowest of its types.
    absorb : tuple of str
        Ops all of whose results are of these dtypes run inside the kernels that read them.
    once : bool
        Sums of gradients over devices are made behind all micro-batches, with the others.
    bucket : bool
        Whether sums over the same devices with nothing between them are merged into a single
        collective.
    split_sends : bool
        Whether a value that several devices hold alike is sent in parts, and gathered at its
        destination.
    blocking : bool
        Collectives that are not split into start and done stop the kernels behind them.
    accumulates : bool
        Gradients are added to their sums as they come, in backward passes.
    sums : str
        Type of the sums of gradients over micro-batches: ``float32``, or that of the ``weight``.
    rules : tuple of FusionRule
        The rules, in the order in which they are tried.
    attention : str
        Whether softmax attention is a kernel (``fused``) or products and a softmax (``written``).
    """

    name: str
    description: str = ""
    casts: bool = False
    absorb: tuple[str, ...] = ()
    once: bool = False
    bucket: bool = False
    split_sends: bool = False
    blocking: bool = False
    accumulates: bool = False
    sums: str = "float32"
    rules: tuple[FusionRule, ...] = ()
    attention: str = "written"

    @property
    def changes_nothing(self) -> bool:
        """Return whether each op is a kernel."""
        return self == Profile(self.name, self.description)

    @staticmethod
    def load(name_or_path: str | Path) -> Profile:
        """Read a profile by its name, or from a JSON file.

        Raises
        ------
        HardwareError
            DIST0701 for a name that is none, DIST0702 for a file that is no JSON, DIST0703 for an
            unknown, missing or wrong value.
        """
        path = Path(name_or_path)
        if str(name_or_path) in profile_names():
            path = DATA / f"{name_or_path}.json"
        elif not os.path.exists(path):
            known = profile_names()
            raise HardwareError(
                "DIST0701",
                f"there is no kernel profile {str(name_or_path)!r}, nor a file of that name",
                place="kernels",
                remedy=f"{nearest(str(name_or_path), known)} Available: {', '.join(known)}.",
            )
        return Profile.from_dict(read_json(path, _no_json, repeated=_wrong), str(path))

    @staticmethod
    def known(profile: Profile | str) -> Profile:
        """Read a profile that is given by its name or path; others are returned as they are."""
        return Profile.load(profile) if isinstance(profile, str) else profile

    @staticmethod
    def from_dict(data: Any, place: str = "kernels") -> Profile:
        """Make a profile of the content of its JSON file. Errors as in :meth:`load`."""
        top = JsonValue(data, place, _wrong).object(_TOP, optional=_OPTIONAL)
        top["schema_version"].version(SCHEMA_VERSION)

        def flag(key: str) -> bool:
            return key in top and top[key].flag()

        return Profile(
            name=top["name"].text(),
            description=top["description"].text() if "description" in top else "",
            casts=flag("casts"),
            absorb=_texts(top, "absorb"),
            once=flag("once"),
            bucket=flag("bucket"),
            split_sends=flag("split_sends"),
            blocking=flag("blocking"),
            accumulates=flag("accumulates"),
            sums=top["sums"].word(SUM_DTYPES) if "sums" in top else "float32",
            rules=tuple(map(_rule, top["kernels"].items())) if "kernels" in top else (),
            attention=top["attention"].word(ATTENTIONS) if "attention" in top else "written",
        )


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that come with the package."""
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))


def _wrong(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0703", what, place=place, remedy=remedy)


def _no_json(place: str, what: str, remedy: str) -> HardwareError:
    return HardwareError("DIST0702", what, place=place, remedy=remedy)


def _texts(data: JsonValue, key: str) -> tuple[str, ...]:
    return tuple(item.text() for item in data[key].items()) if key in data else ()


def _rule(data: JsonValue) -> FusionRule:
    fields = data.object(_RULE, optional=_RULE_OPTIONAL)
    return FusionRule(
        name=fields["name"].text(),
        anchors=_texts(fields, "anchors"),
        members=_texts(fields, "members"),
        issue=fields["issue"].word(ISSUERS) if "issue" in fields else "any",
        batch_multiple=fields["batch_multiple"].integer(1) if "batch_multiple" in fields else 1,
        launches_else=fields["launches_else"].integer() if "launches_else" in fields else 0,
        extra_bytes=fields["extra_bytes"].integer() if "extra_bytes" in fields else 0,
        kernel_class=fields["class"].word(KERNEL_CLASSES) if "class" in fields else "",
    )

#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""List the names of TVM that the package uses and a version of TVM lacks.

``python scripts/checks/tvm_names.py installed`` asks the TVM of this environment, and
``python scripts/checks/tvm_names.py apache_tvm-0.28.0-....whl`` one that is not installed; its
``apache-tvm-ffi`` is that of this environment. The exit status is 1 if a name is missing that any
file but those of ``tvm_distir/support/tvm`` uses. Names are those that follow from imports, as
``tvm.ir.Call`` of ``ir.Call`` below ``from tvm import ir``; attributes of values are not.

``--differences OLD NEW --write`` writes ``tvm_names.json``, the names of modules that the package
imports which only one of two versions has: ``python/tests/repo/test_tvm_names.py`` lets no other
file use one. ``docs/dev/new_tvm.md`` says when to do it.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".json")
SEAM = ROOT / "tvm_distir" / "support" / "tvm"
"""The files that may use names that only some versions of TVM have, and private ones."""
ROOTS = ("tvm", "tvm_ffi")

# Run where the version in question is imported as tvm. They read a list of names, and write the
# version and their answer. `import tvm` loads TVM's own backends and, without the plugin, leaves
# tvm.runtime.disco partially initialized.
_BEGIN = """\
import importlib, json, sys, warnings
sys.modules["tvm_distir"] = None
warnings.simplefilter("ignore")
import tvm

for name in ("tvm.runtime.disco", "tvm.runtime.disco._ffi_api"):
    sys.modules.pop(name, None)

def load(name):
    try:
        return importlib.import_module(name)
    except Exception:
        return None
"""
LACKING = """
def has(name):
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        value = load(".".join(parts[:end]))
        if value is not None:
            for part in parts[end:]:
                if not hasattr(value, part):
                    return False
                value = getattr(value, part)
            return True
    return False

answer = [name for name in json.load(sys.stdin) if not has(name)]
"""
_PUBLIC = """
modules = {name: load(name) for name in json.load(sys.stdin)}
answer = []
for name, module in modules.items():
    if module is not None:
        answer += [name, *(f"{name}.{part}" for part in dir(module) if part[0] != "_")]
"""
_END = """
print(json.dumps([tvm.__version__, sorted(set(answer))]))
"""


class Use(NamedTuple):
    """A use of a name of TVM: the name from ``tvm`` or ``tvm_ffi`` on, the file and the line."""

    name: str
    path: Path
    line: int


def uses_in(tree: ast.AST, path: Path) -> Iterator[Use]:
    """Yield the names of TVM that a file uses, each as long as the file writes it."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                if first in ROOTS:
                    names[alias.asname or first] = alias.name if alias.asname else first
                    yield Use(alias.name, path, node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.partition(".")[0] in ROOTS:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    names[alias.asname or alias.name] = full
                    yield Use(full, path, node.lineno)

    inner: set[int] = set()
    for node in ast.walk(tree):  # an attribute comes before that which it is an attribute of
        if isinstance(node, ast.Attribute):
            full_name = None if id(node) in inner else _dotted(node, names)
            inner.add(id(node.value))
            if full_name is not None:
                yield Use(full_name, path, node.lineno)


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, names)
        return None if base is None else f"{base}.{node.attr}"
    return None


def package_uses() -> list[Use]:
    """Return all uses of names of TVM in the package."""
    files = sorted((ROOT / "tvm_distir").rglob("*.py"))
    return [use for path in files for use in uses_in(ast.parse(path.read_text("utf-8")), path)]


def ask(version: str, program: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """Run a program with a version of TVM.

    Parameters
    ----------
    version : str
        The path of a wheel, or ``installed``.
    program : str
        What computes ``answer`` from the names on its standard input.
    names : sequence of str

    Returns
    -------
    version : str
        The version that TVM calls itself.
    answer : list of str
    """
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ)
        if version != "installed":
            with zipfile.ZipFile(version) as wheel:
                wheel.extractall(folder)
            env["PYTHONPATH"] = os.pathsep.join([folder, env.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", _BEGIN + program + _END],
            input=json.dumps(names),
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            cwd=folder,
        )
    if done.returncode:
        raise SystemExit(f"{version} cannot be imported; its own message is above")
    found, answer = json.loads(done.stdout.splitlines()[-1])
    return found, answer


def report(version: str, uses: Sequence[Use]) -> int:
    """Print what a version lacks; return the number of names missing outside of the seam."""
    by_name: dict[str, list[Use]] = {}
    for use in uses:
        by_name.setdefault(use.name, []).append(use)
    found, lacking = ask(version, LACKING, sorted(by_name))
    outside = {
        name: [use for use in by_name[name] if SEAM not in use.path.parents] for name in lacking
    }
    missing = {name: found_uses for name, found_uses in outside.items() if found_uses}
    print(f"apache-tvm {found}: {len(by_name)} names in {len(uses)} uses; {len(missing)} missing")
    for name, where in missing.items():
        first = f"{where[0].path.relative_to(ROOT)}:{where[0].line}"
        print(f"  {name}  {len(where)} uses, first {first}")
    expected = sorted(set(lacking) - missing.keys())
    if expected:
        print(f"  in {SEAM.relative_to(ROOT)} only: {', '.join(expected)}")
    return len(missing)


def differences(old: str, new: str, uses: Sequence[Use]) -> dict[str, list[str]]:
    """Return the names that one of two versions lacks, without those below another such name."""
    parents = {".".join(use.name.split(".")[:n]) for use in uses for n in range(1, 6)}
    modules = sorted(name for name in parents if name.startswith("tvm") and "_ffi" not in name)
    (first, had), (second, has) = (ask(version, _PUBLIC, modules) for version in (old, new))
    return {
        f"only {first}": _shortest(set(had) - set(has)),
        f"only {second}": _shortest(set(has) - set(had)),
    }


def _shortest(names: set[str]) -> list[str]:
    return sorted(
        name
        for name in names
        if not any(name[:end] in names for end in range(len(name)) if name[end] == ".")
    )


def main() -> int:
    """Report, or write the differences; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", nargs="*", help='the path of a wheel, or "installed"')
    parser.add_argument("--differences", nargs=2, metavar=("OLD", "NEW"), help="two versions")
    parser.add_argument("--write", action="store_true", help=f"write {LIST.name}")
    options = parser.parse_args()
    if not options.version and not options.differences:
        parser.error("name a version, or two after --differences")
    if options.write and not options.differences:
        parser.error("--write writes what --differences gives")
    uses = package_uses()
    if options.differences:
        text = json.dumps(differences(*options.differences, uses), indent=2) + "\n"
        if options.write:
            LIST.write_text(text, encoding="utf-8")
        else:
            print(text, end="")
    return int(any([report(version, uses) for version in options.version]))


if __name__ == "__main__":
    sys.exit(main())

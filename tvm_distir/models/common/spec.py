# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Locate and check the file of a MODEL string without importing TVM."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

from tvm_distir.support import ModelError, file_fault, shortened

from .published import is_published

ZOO = "zoo:"
JAX_ARTIFACT = ".jax"
STABLEHLO = (".mlir", ".mlirbc", ".stablehlo", JAX_ARTIFACT)
RELAX = ".json"
FILES = (".onnx", ".pt2", ".py", RELAX, *STABLEHLO)
"""The suffixes of model files."""
CONFIG = "config.json"
"""The file of a model on the Hugging Face hub that describes its sizes."""
_MOST_CONFIG_BYTES = 1 << 16
_BYTECODE = b"ML\xefR"
_MOST_PACKED_BYTES = 64 << 20
"""The maximum bytes to which the compressed members of an archive may unpack."""


def model_file(spec: str) -> str | None:
    """Return the path of the file of a MODEL string, or None for a model of the zoo.

    Examples
    --------
    >>> model_file("m.onnx"), model_file("m.py::Name"), model_file("m.mlir?data=x")
    ('m.onnx', 'm.py', 'm.mlir')
    """
    if spec.startswith(ZOO) or is_published(spec):
        return None
    name, mark, _ = spec.partition("?")
    if mark and (name.lower().endswith(STABLEHLO) or is_config(name)):
        return name
    return spec.partition("::")[0]


def is_config(path: str) -> bool:
    """Return whether a path is a ``config.json`` of the Hugging Face hub, or a folder with it.

    A JSON file of another name is one where it states a ``model_type`` and has no nodes of TVM.
    """
    if Path(path).name == CONFIG or Path(path, CONFIG).is_file():
        return True
    if not path.lower().endswith(RELAX) or not Path(path).is_file():
        return False
    with open(path, "rb") as file:
        head = file.read(_MOST_CONFIG_BYTES)
    return b'"model_type"' in head and b'"nodes"' not in head


def may_be_annotated(spec: str) -> bool:
    """Return whether a MODEL is of a kind that may have annotations instead of a plan."""
    path = model_file(spec)
    if path is not None and is_config(path):
        return False
    return path is not None and path.lower().endswith((".py", RELAX, *STABLEHLO))


def check_file(path: str | Path) -> None:
    """Reject a path without a file (DIST0301)."""
    fault = file_fault(path)
    if fault is not None:
        problem = f"cannot read the file: {fault}"
        raise ModelError("DIST0301", problem, location=str(path), remedy="Check the path.")


def file_bytes(path: str | Path) -> bytes:
    """Return the content of a file.

    Raises
    ------
    ModelError
        DIST0301 no file, or an unreadable file.
    """
    check_file(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        problem = f"cannot read the file: {error.strerror or error}"
        raise ModelError(
            "DIST0301", problem, location=str(path), remedy="Check the path."
        ) from error


def check_torch(location: str) -> None:
    """Reject the model if torch is not installed (DIST0304)."""
    if importlib.util.find_spec("torch") is None:
        problem = "reading torch.export programs requires torch, which is not installed"
        remedy = 'Install the extra: pip install "tvm_distir[torch]".'
        raise ModelError("DIST0304", problem, location=location, remedy=remedy)


def check_archive(path: str | Path) -> None:
    """Reject a file that is no PyTorch archive, or that expands to too much (DIST0303)."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        raise _no_archive(path, f"it is not a zip archive: {error}") from error
    packed_bytes = sum(
        item.file_size for item in members if item.compress_type != zipfile.ZIP_STORED
    )
    if packed_bytes > _MOST_PACKED_BYTES:
        raise _no_archive(
            path, f"it would unpack to {packed_bytes} bytes, but PyTorch does not compress"
        )
    if not members:
        raise _no_archive(path, "it is empty")
    for item in members:
        if item.filename.startswith("/") or ".." in item.filename.split("/"):
            raise _no_archive(path, f'"{shortened(item.filename)}" would be outside of its folder')


def _no_archive(path: str | Path, problem: str) -> ModelError:
    remedy = "Write it with torch.export.save."
    return ModelError("DIST0303", problem, location=str(path), remedy=remedy)


def is_bytecode(data: bytes) -> bool:
    """Return whether a file's first bytes are those of MLIR bytecode."""
    return data.startswith(_BYTECODE)


def check_jax(location: str) -> None:
    """Reject the model if JAX is not installed (DIST0304)."""
    if importlib.util.find_spec("jaxlib") is None or importlib.util.find_spec("jax") is None:
        problem = "reading MLIR bytecode requires jax, which is not installed"
        remedy = 'Install the extra: pip install "tvm_distir[jax]"; or write it as text.'
        raise ModelError("DIST0304", problem, location=location, remedy=remedy)


def check_model(spec: str) -> None:
    """Check a MODEL string before TVM is imported.

    Raises
    ------
    ModelError
        DIST0301 it names a file of a known kind which is not there, DIST0303 an archive that is
        none, DIST0304 an archive of
        PyTorch where torch is not installed, bytecode of MLIR where jax is not.
    """
    path = model_file(spec)
    if path is None or Path(path).suffix.lower() not in FILES:
        return
    check_file(path)
    suffix = Path(path).suffix.lower()
    if suffix == ".pt2":
        check_archive(path)
        check_torch(spec)
    elif suffix == JAX_ARTIFACT or (suffix in STABLEHLO and is_bytecode(_first_bytes(path))):
        check_jax(spec)


def _first_bytes(path: str) -> bytes:
    """Return the first bytes of a file, or none if it cannot be opened."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_BYTECODE))
    except OSError:
        return b""


def split_keys(text: str, spec: str) -> tuple[str, dict[str, str]]:
    """Split ``name?key=value,...``."""
    name, mark, rest = text.partition("?")
    keys: dict[str, str] = {}
    for item in rest.split(",") if mark else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key or not equals or not value or key in keys:
            problem = f'key "{key}" is given twice' if key in keys else f'"{item}" is not key=value'
            raise ModelError(
                "DIST0302", problem, location=spec, remedy="Write NAME?key=value,key=value."
            )
        keys[key] = value
    return name, keys


def has_keys(spec: str) -> bool:
    """Return whether the sizes of a MODEL string are keys: a model of the zoo, or a config.json."""
    path = model_file(spec)
    return path is None or Path(path).suffix.lower() not in FILES or is_config(path)


def model_with_key(spec: str, key: str, value: float, remedy: str) -> str:
    """Return the MODEL string with a further key, such as ``seq``, the tokens of a sample.

    ``remedy`` says what replaces the key where the model has none.

    Raises
    ------
    ModelError
        DIST0313 for a file whose sizes are not keys.

    Examples
    --------
    >>> model_with_key("zoo:gpt?size=tiny", "seq", 8, "Leave it out.")
    'zoo:gpt?size=tiny,seq=8'
    """
    if not has_keys(spec):
        problem = f"only models of the zoo and configurations have the key {key}"
        raise ModelError("DIST0313", problem, location=key, remedy=remedy)
    return f"{spec}{',' if '?' in spec else '?'}{key}={value}"


def batch_fault(kind: str, spec: str, instead: str) -> ModelError:
    """Return the error (DIST0314) about a batch for a text format that fixes the batch."""
    problem = f"the batch of a {kind} module is fixed"
    return ModelError("DIST0314", problem, location=spec, remedy=f"Remove --batch; {instead}.")

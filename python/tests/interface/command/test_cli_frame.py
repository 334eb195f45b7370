# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The frame of the command: option values, and what becomes of failures."""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest

from tvm_distir.interface.command import app, main, opt
from tvm_distir.support.errors.tree import (
    DistIRError,
    InfeasibleError,
    MeshError,
    ModelError,
    UsageError,
)
from tvm_distir.support.plugins.option_values import parse_count, parse_mesh, parse_seed

Fail = Callable[[BaseException], None]


def test_mesh_keeps_the_order_of_axes() -> None:
    assert list(parse_mesh("tp=4, dp=2").items()) == [("tp", 4), ("dp", 2)]


@pytest.mark.parametrize(
    ("text", "error", "code"),
    [
        ("", MeshError, "DIST0201"),
        ("   ", MeshError, "DIST0201"),
        ("dp=0", MeshError, "DIST0201"),
        ("dp=-2", MeshError, "DIST0201"),
        ("dp=two", MeshError, "DIST0201"),
        ("dp=2.0", MeshError, "DIST0201"),
        ("dp=", MeshError, "DIST0201"),
        ("dp=２", MeshError, "DIST0201"),
        ("dp=2=3", MeshError, "DIST0201"),
        ("dp", UsageError, "DIST0152"),
        ("=2", UsageError, "DIST0152"),
        ("dp=2,", UsageError, "DIST0152"),
        ("dp=2,dp=2", UsageError, "DIST0152"),
        ("d p=2", UsageError, "DIST0152"),
    ],
)
def test_bad_meshes(text: str, error: type[DistIRError], code: str) -> None:
    with pytest.raises(error) as caught:
        parse_mesh(text)
    assert caught.value.code == code and caught.value.remedy and caught.value.location == "--mesh"


def test_count_and_seed() -> None:
    assert parse_count("8", "--batch") == 8 and parse_seed("0", "--seed") == 0
    for text in ("0", "-1", "x", "1.5", ""):
        with pytest.raises(UsageError, match="DIST0152"):
            parse_count(text, "--batch")
    for text in ("-1", str(2**32), "x"):
        with pytest.raises(UsageError, match="DIST0152"):
            parse_seed(text, "--seed")


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Make ``tvm-distir opt`` raise a given exception."""
    monkeypatch.delenv("TVM_DISTIR_DEBUG", raising=False)

    def set_failure(error: BaseException) -> None:
        def raise_error(_: argparse.Namespace) -> int:
            raise error

        monkeypatch.setattr(opt, "run", raise_error)

    return set_failure


ARGUMENTS = ["opt", "-p", "lower", "in.py"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelError("DIST0301", "no such file", location="m.onnx", remedy="Look."), 1),
        (UsageError("DIST0150", "what", location="here", remedy="Do."), 2),
        (InfeasibleError("DIST0801", "too big", location="device 0", remedy="Cut."), 3),
    ],
)
def test_our_errors_are_one_line_on_stderr(
    error: DistIRError, code: int, fail: Fail, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(error)
    assert main(ARGUMENTS) == code
    out, err = capsys.readouterr()
    assert out == "" and err == f"{error}\n" and err.startswith("DIST")


def test_other_errors_are_our_bugs(fail: Fail, capsys: pytest.CaptureFixture[str]) -> None:
    fail(KeyError("a\nb" * 400))
    assert main(ARGUMENTS) == 70
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and len(err) < 600
    assert err.startswith("DIST0901 internal error: KeyError: ") and "--debug" in err


@pytest.mark.parametrize("how", ["option", "environment"])
def test_debug_shows_the_traceback(
    how: str, fail: Fail, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(ValueError("inner"))
    if how == "environment":
        monkeypatch.setenv("TVM_DISTIR_DEBUG", "1")
    assert main([*ARGUMENTS, "--debug"] if how == "option" else ARGUMENTS) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err and err.splitlines()[-1].startswith("DIST0901")


def test_an_interrupt_exits_130(fail: Fail, capsys: pytest.CaptureFixture[str]) -> None:
    fail(KeyboardInterrupt())
    assert main(ARGUMENTS) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_warnings_are_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(_: argparse.Namespace) -> int:
        warnings.simplefilter("default")
        warnings.warn("mind\nthis", stacklevel=1)
        return 0

    monkeypatch.setattr(opt, "run", warn)
    assert main(ARGUMENTS) == 0
    assert capsys.readouterr() == ("", "warning: mind this\n")


@pytest.mark.parametrize("arguments", [["--help"], ["analyze", "--help"], ["--version"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "tvm-distir" in out and err == ""


def test_every_command_has_the_debug_option() -> None:
    parser = app.build_parser()
    for words in (
        ["analyze", "m", "--system", "s"],
        ["verify", "m", "--engine", "e"],
        ARGUMENTS,
        ["simulate", "p", "--system", "s"],
    ):
        assert parser.parse_args([*words, "--debug"]).debug is True


def test_the_frame_itself_does_not_load_tvm() -> None:
    code = (
        "import sys, types\n"
        "package = types.ModuleType('tvm_distir')\n"
        f"package.__path__ = [{str(app.__file__).rsplit('/interface/', 1)[0]!r}]\n"
        "package.__version__ = '0'\n"
        "sys.modules['tvm_distir'] = package\n"
        "from tvm_distir.interface.command import main\n"
        "codes = main(['--help']), main(['analyze']), main(['opt', '-p', 'x', 'in.py'])\n"
        "assert codes == (0, 2, 2), codes\n"
        "assert 'tvm' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [word for action in parser._actions for word in action.option_strings]


def _commands() -> dict[str, argparse.ArgumentParser]:
    for action in app.build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("there are no commands")


def test_the_help_of_a_command_fits_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """The rarely given options are on the second page, with the full texts."""
    for name, parser in _commands().items():
        assert main([name, "--help"]) == 0
        short = capsys.readouterr().out
        assert len(short.splitlines()) <= 44, name
        assert main([name, "--help-all"]) == 0
        full = capsys.readouterr().out
        for word in _options(parser):
            assert word in full, (name, word)
        if "more options" in short:
            assert len(full) > len(short)


def test_no_two_options_differ_by_a_letter() -> None:
    """A typing mistake in the name of an option never gives another option."""
    words = {word for parser in _commands().values() for word in _options(parser)}
    long = sorted(word for word in words if word.startswith("--"))
    assert len(long) > 100
    alike = {(a, b) for a in long for b in long if a < b and _differ_by_a_letter(a, b)}
    assert alike == set()


def _differ_by_a_letter(a: str, b: str) -> bool:
    if len(a) > len(b):
        a, b = b, a
    if len(a) == len(b):
        return sum(x != y for x, y in zip(a, b)) == 1
    return any(b[:i] + b[i + 1 :] == a for i in range(len(b)))

# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The tables of the docs say what is registered."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.loaded_script import loaded_script

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    """``scripts/docs_tools/update_docs_tables.py`` as a module."""
    return loaded_script("update_docs_tables")


def test_the_tables_are_up_to_date(
    writer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["update_docs_tables.py", "--check"])
    assert writer.main() == 0, f"run .venv/bin/python scripts/docs_tools/{writer.__name__}.py"
    assert capsys.readouterr().err == ""


def test_a_stale_table_is_found_and_written(
    writer: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Names, levels, defaults and help come from the declarations; the rest of a page stays."""
    slots = [
        f"<!-- table:{name}:start -->\nold\n<!-- table:{name}:end -->\n" for name in writer.TABLES
    ]
    page = tmp_path / "page.md"
    page.write_text("before\n" + "between\n".join(slots) + "after\n", encoding="utf-8")
    monkeypatch.setattr(writer, "ROOT", tmp_path)
    monkeypatch.setattr(writer, "FILES", ("page.md",))
    monkeypatch.setattr(sys, "argv", ["update_docs_tables.py", "--check"])
    assert writer.main() == 1 and "\nold\n" in page.read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["update_docs_tables.py"])
    assert writer.main() == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "\nbetween\n" in text
    assert "\nold\n" not in text
    assert (
        "### `legalize`\n\n`LegalizeRedistribute`, from distributed to legalized.\n\n"
        "Make every movement of data explicit.\n\n- `system=none`: System whose"
    ) in text
    megatron = text[text.index("### `megatron`\n") :]
    assert "\n\n- `axis=tp`: The mesh axis" in megatron[: megatron.index("###", 3)]
    monkeypatch.setattr(sys, "argv", ["update_docs_tables.py", "--check"])
    assert writer.main() == 0

import re
from pathlib import Path

import pytest

DECISIONS = sorted((Path(__file__).parents[2] / "docs/decisions").glob("*.md"))
MAX_LINES = 60


def test_numbers_have_no_gaps() -> None:
    assert [path.name[:5] for path in DECISIONS] == [f"{number:04}-" for number in range(1, len(DECISIONS) + 1)]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_is_short_and_complete(path: Path) -> None:
    text = path.read_text()
    assert re.match(rf"# {path.name[:4]}: \S", text), "the title carries the number of the file"
    assert len(text.splitlines()) <= MAX_LINES
    assert "**Context.**" in text
    assert "**Decision.**" in text

"""The documents tell the truth about the tree: paths exist, README.md is short, decisions are numbered."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "SECURITY.md", "SPECIFICATION.md", "CHANGELOG.md", "CONTRIBUTING.md")
README_LINES = 200
_PATH = re.compile(r"(?<![\w/.])((?:src|tests|bench|docs|scripts|agent|launcher|examples)/[\w./-]*\w)")
_LINK = re.compile(r"\]\(([\w./-]+)\)")


def problems() -> list[str]:
    """One line for each untruth."""
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        paths = set(_PATH.findall(text)) | set(_LINK.findall(text))
        found += [f"{name}: {path} does not exist" for path in sorted(paths) if not (ROOT / path).exists()]
        if name == "SECURITY.md":
            rows = [line for line in text.splitlines() if line.startswith("| ") and "| test |" not in line]
            found += [f"{name}: no test in row: {row}" for row in rows if "tests/" not in row]
    lines = len((ROOT / "README.md").read_text().splitlines())
    if lines > README_LINES:
        found.append(f"README.md: {lines} lines, at most {README_LINES}")
    numbers = [path.name[:4] for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    if numbers != [f"{number:04}" for number in range(1, len(numbers) + 1)]:
        found.append(f"docs/decisions: numbers are {', '.join(numbers)}")
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "documents: every path exists")
    sys.exit(bool(lines))

"""Kernel flaws that are famous enough to ask for by name, and whether a version has them (pure).

The process level stands on the host's kernel, so a flaw in it is a way out. The table is for `doctor`: it can
tell from a version number that a kernel *may* be affected, not that it is safe.
"""

import re
from typing import NamedTuple

Version = tuple[int, int, int]


class Advisory(NamedTuple):
    """One flaw. Sources: the CVE records and the stable trees' own change logs."""

    cve: str
    name: str
    since: Version
    fixed: tuple[Version, ...]
    """The first good release of each stable series that was fixed."""
    mainline: Version
    """The first release line that was never affected."""
    reach: str
    """What it means for a guest of the process level."""


_PAGE_CACHE = "lets a guest write into host files it may only read, with ordinary system calls"
_NAMESPACES = "needs a user namespace of the attacker's own, which the process level refuses to its guests"

ADVISORIES = (
    Advisory(
        "CVE-2016-5195",
        "Dirty COW",
        (2, 6, 22),
        ((3, 12, 66), (3, 16, 38), (3, 18, 44), (4, 1, 35), (4, 4, 26), (4, 7, 9), (4, 8, 3)),
        (4, 9, 0),
        _PAGE_CACHE,
    ),
    Advisory(
        "CVE-2022-0847", "Dirty Pipe", (5, 8, 0), ((5, 10, 102), (5, 15, 25), (5, 16, 11)), (5, 17, 0), _PAGE_CACHE
    ),
    Advisory(
        "CVE-2022-0185",
        "fsconfig overflow",
        (5, 1, 0),
        ((5, 4, 173), (5, 10, 93), (5, 15, 16), (5, 16, 2)),
        (5, 17, 0),
        _NAMESPACES,
    ),
    Advisory("CVE-2023-0386", "overlayfs copy-up", (5, 11, 0), ((5, 15, 91), (6, 1, 9)), (6, 2, 0), _NAMESPACES),
    Advisory(
        "CVE-2023-32233",
        "nf_tables anonymous sets",
        (3, 13, 0),
        (
            (4, 14, 315),
            (4, 19, 283),
            (5, 4, 243),
            (5, 10, 180),
            (5, 15, 111),
            (6, 1, 28),
            (6, 2, 15),
            (6, 3, 2),
        ),
        (6, 4, 0),
        _NAMESPACES,
    ),
    Advisory(
        "CVE-2024-1086",
        "nf_tables verdicts",
        (3, 15, 0),
        ((4, 19, 307), (5, 4, 269), (5, 10, 210), (5, 15, 149), (6, 1, 76), (6, 6, 15), (6, 7, 3)),
        (6, 8, 0),
        _NAMESPACES,
    ),
)


def affecting(version: Version) -> list[Advisory]:
    """The flaws that a kernel of upstream `version` has."""
    return [advisory for advisory in ADVISORIES if _affects(advisory, version)]


def _affects(advisory: Advisory, version: Version) -> bool:
    if not advisory.since <= version < advisory.mainline:
        return False
    return not any(fixed[:2] == version[:2] and fixed <= version for fixed in advisory.fixed)


def upstream_version(release: str, build: str, signature: str) -> Version:
    """The upstream version behind a distribution's kernel.

    Args:
        release: as ``uname -r``; Debian and Ubuntu leave the third number at 0 there.
        build: as ``uname -v``; Debian puts the upstream version there.
        signature: /proc/version_signature, where Ubuntu puts it; empty elsewhere.
    """
    debian = re.search(r"\bDebian (\d\S*)", build)
    ubuntu = re.search(r"(\d\S*)$", signature)
    text = (ubuntu or debian or (release, release))[1]
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(numbers[1]), int(numbers[2]), int(numbers[3] or 0)) if numbers else (0, 0, 0)

"""One measured figure, with its floor where it has one."""

import statistics
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """A row of the table; `value` and `floor` are medians in `unit`."""

    what: str
    value: float
    unit: str
    target: str
    floor: float | None = None
    floor_name: str = ""

    @property
    def ratio(self) -> float | None:
        """Value over floor."""
        return self.value / self.floor if self.floor else None

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict() | {"ratio": self.ratio}

    def cells(self) -> tuple[str, ...]:
        """For the table."""
        floor = "" if self.floor is None else f"{self.floor:.2f} {self.unit} {self.floor_name}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return (self.what, f"{self.value:.2f} {self.unit}", floor, ratio, self.target)


def milliseconds(seconds: list[float]) -> float:
    """Median of `seconds` in milliseconds."""
    return statistics.median(seconds) * 1000

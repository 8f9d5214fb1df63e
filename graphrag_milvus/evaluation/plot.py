"""Recall against latency as a picture: up and to the left is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from graphrag_milvus.errors import InputError, MissingDependencyError
from graphrag_milvus.evaluation.harness import Evaluation

__all__ = ["check", "plot"]

_INK, _SOFT, _GRID = "#22262b", "#6b7280", "#e3e6ea"
_COLOURS = (
    "#2f6fb0",
    "#d9772b",
    "#3f8f5f",
    "#b0413e",
    "#7a5aa6",
    "#8a6d3b",
    "#3a8f98",
    "#a4527f",
)  # apart also in grey
_SIZE = (7.2, 4.6)  # inches


def check(path: Path) -> None:
    """Raise what `plot` would raise for this path, before the run that is to be drawn.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        InputError: the name does not end in .png, or its folder does not exist.
    """
    _matplotlib()
    if path.suffix.lower() != ".png":
        raise InputError(f"{str(path)!r} is no PNG; the plot is written as NAME.png")
    if not path.absolute().parent.is_dir():
        raise InputError(f"the folder of {str(path)!r} does not exist; make it first")


def plot(evaluation: Evaluation, path: Path) -> None:
    """Draw recall with its 95 % interval against the median latency of each method into a PNG file.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        InputError: the file cannot be written.
    """
    check(path)
    figure = _figure(evaluation)
    try:
        figure.savefig(path, dpi=160, facecolor="white")
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error}; name another file") from error


def _matplotlib() -> Any:
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure
        import matplotlib.transforms
    except ImportError:
        raise MissingDependencyError('a plot needs matplotlib; pip install "graphrag-milvus[evaluation]"') from None
    return matplotlib


def _figure(evaluation: Evaluation) -> Any:
    """A figure without pyplot, so that no window system and no global state is touched."""
    library = _matplotlib()
    figure = library.figure.Figure(figsize=_SIZE, layout="constrained")
    library.backends.backend_agg.FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points = [_point(method, result, evaluation.headline) for method, result in evaluation.results.items()]
    for point, colour in zip(points, cycle(_COLOURS)):
        _draw(axes, point, colour)
    _frame(axes, evaluation)
    figure.draw_without_rendering()  # so that places on the page are known
    _label(axes, points)
    return figure


@dataclass(frozen=True)
class _Point:
    """A method: milliseconds, recall in per cent and the ends of its interval."""

    method: str
    x: float
    y: float
    low: float
    high: float


def _point(method: str, result: Mapping[str, Any], k: int) -> _Point:
    low, high = (100 * float(end) for end in result[f"recall@{k}_ci"])
    return _Point(method, float(result["ms_p50"]), 100 * float(result[f"recall@{k}"]), low, high)


def _draw(axes: Any, point: _Point, colour: str) -> None:
    ends = [[max(point.y - point.low, 0.0)], [max(point.high - point.y, 0.0)]]
    axes.errorbar(point.x, point.y, ends, fmt="o", ms=9, color=colour, elinewidth=1.4, capsize=4)


_PLACES = [(side, up) for up in (8, -14, 20, -26, 32, -38, 44, -50) for side in (1, -1)]
"""Where a name may stand beside its point: to the right or left, so many typographic points up."""


def _label(axes: Any, points: Sequence[_Point]) -> None:
    """Names beside the points, each at the first place where it covers no point and no other name."""
    taken = [_bar_box(axes, point) for point in points]
    for point, colour in zip(points, cycle(_COLOURS)):
        taken.append(_placed(axes, point, colour, taken))


def _placed(axes: Any, point: _Point, colour: str, taken: Sequence[Any]) -> Any:
    """Write one name; the room that it takes."""
    for side, up in _PLACES:
        text = _named(axes, point, colour, side, up)
        box = text.get_window_extent()
        if _inside(axes, box) and not any(box.overlaps(other) for other in taken):
            return box
        text.remove()
    return _named(axes, point, colour, *_PLACES[0]).get_window_extent()  # better over something than not at all


def _inside(axes: Any, box: Any) -> bool:
    return bool(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1)


def _named(axes: Any, point: _Point, colour: str, side: int, up: int) -> Any:
    return axes.annotate(
        f"{point.method}  {point.y:.1f}",
        (point.x, point.y),
        xytext=(10 * side, up),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        color=colour,
        fontsize=10.5,
        fontweight="bold",
    )


def _bar_box(axes: Any, point: _Point) -> Any:
    """What a point and its interval cover on the page."""
    (x, low), (_, high) = axes.transData.transform([(point.x, point.low), (point.x, point.high)])
    return _matplotlib().transforms.Bbox.from_extents(x - 12, low - 12, x + 12, high + 12)


def _frame(axes: Any, evaluation: Evaluation) -> None:
    times = [float(r["ms_p50"]) for r in evaluation.results.values()]
    if min(times) > 0 and max(times) > 3 * min(times):
        axes.set_xscale("log")
        axes.set_xlim(min(times) / 1.8, max(times) * 1.8)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    else:
        axes.set_xlim(0, 1.3 * max(*times, 1.0))
    axes.margins(y=0.15)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -2.0), min(high, 103.0))  # the whole of a point at 0 or 100, and not much more
    axes.grid(True, which="both", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("p50 of a question in ms, without its embedding", color=_SOFT)
    axes.set_ylabel(f"Recall@{evaluation.headline} in %, 95 % interval", color=_SOFT)
    axes.set_title(_title(evaluation.index, evaluation), loc="left", color=_INK, fontsize=11.5)
    axes.tick_params(colors=_SOFT, which="both", length=0)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(_GRID)


def _title(index: Mapping[str, Any], evaluation: Evaluation) -> str:
    counts = f"{evaluation.questions:,} questions, {evaluation.passages:,} passages"
    return f"{evaluation.dataset}: {counts} ({index['extractor']})"

"""Draw the picture of the README from `results/spark/tuned`: rows per second of `enrich` and of Spark's own join.

python docs/tools/picture.py [OUT.svg]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "img" / "spark.svg"
BATCH_ROWS = 500_000
#: name in the results: label, colour, style
SERIES = {
    "transport": ("rows through Python and back, no join", "#999999", ":"),
    "sweepjoin inner": ("enrich", "#1b6ca8", "-"),
    "native inner": ("Spark's own join, tuned", "#c1440e", "-"),
}


def measured() -> dict[int, dict[str, float]]:
    """Rows per second of every series, by the rows of R."""
    found: dict[int, dict[str, float]] = {}
    for file in sorted((ROOT / "results" / "spark" / "tuned").glob("*.json")):
        for result in json.loads(file.read_text())["results"]:
            if result["batch"] == BATCH_ROWS:
                found[result["rows"]] = result["rates"]
    return dict(sorted(found.items()))


def draw(path: Path) -> None:
    """Write the picture as SVG, the same bytes for the same numbers."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "semistream", "font.size": 10})
    rates = measured()
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for name, (label, colour, style) in SERIES.items():
        axes.plot(list(rates), [rate[name] for rate in rates.values()], style, color=colour, marker="o", label=label)
    axes.set(xscale="log", yscale="log", xlabel="rows of the master table", ylabel="stream rows per second")
    axes.set_xticks(list(rates), [f"{rows // 1_000_000} million" for rows in rates])
    axes.set_yticks([10_000, 100_000, 1_000_000], ["10,000", "100,000", "1,000,000"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)

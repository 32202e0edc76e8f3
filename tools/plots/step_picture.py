"""Draws one decode step of a trace (megalith bench --trace FILE) as SVG: what each worker does, and where it waits.

    python step_picture.py TRACE_JSON OUTPUT_SVG [--step N]

Needs the standard library only.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

WIDTH, LEFT, ROW, GAP, TOP = 1000, 70, 34, 8, 46
COLOURS = {"matmul": "#4878a8", "gated_delta": "#d98c3f", "attend": "#5a9e6f", "short_conv": "#8d6cab", "wait": "#e3e3e3"}
OTHER = "#b5544d"


def steps_of(events: list[dict]) -> list[list[dict]]:
    """Events by step: a step begins where a worker does the embedding."""
    steps: list[list[dict]] = []
    for event in sorted(events, key=lambda e: e["ts"]):
        if event["cat"] == "embed" and (not steps or any(e["cat"] == "sample" for e in steps[-1])):
            steps.append([])
        if steps:
            steps[-1].append(event)
    return steps


def picture(step: list[dict], title: str) -> str:
    """The SVG of one step."""
    begin = min(e["ts"] for e in step)
    length = max(e["ts"] + e["dur"] for e in step) - begin
    scale = (WIDTH - LEFT) / length
    workers = sorted({e["tid"] for e in step})
    height = TOP + len(workers) * (ROW + GAP) + 40
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 10} {height}" font-family="sans-serif" font-size="13">',
             f'<rect width="100%" height="100%" fill="white"/><text x="4" y="18">{title}: {length / 1000:.1f} ms</text>']
    for row, worker in enumerate(workers):
        y = TOP + row * (ROW + GAP)
        parts.append(f'<text x="4" y="{y + 22}">worker {worker}</text>')
        for kind, start, end in joined([e for e in step if e["tid"] == worker]):
            width = max((end - start) * scale, 0.05)
            colour = COLOURS.get(kind, OTHER)
            parts.append(f'<rect x="{LEFT + (start - begin) * scale:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{colour}"/>')
    return "\n".join([*parts, *legend(step, height - 14, len(workers)), "</svg>"]) + "\n"


def joined(events: list[dict]) -> list[tuple[str, float, float]]:
    """Neighbours of one kind as one piece: (kind, start, end)."""
    pieces: list[tuple[str, float, float]] = []
    for event in events:
        kind = event["cat"] if event["cat"] in COLOURS else "other"
        end = event["ts"] + event["dur"]
        if pieces and pieces[-1][0] == kind:
            pieces[-1] = (kind, pieces[-1][1], end)
        else:
            pieces.append((kind, event["ts"], end))
    return pieces


def legend(step: list[dict], y: float, workers: int) -> list[str]:
    """Colours, with the milliseconds of a worker."""
    sums: defaultdict[str, float] = defaultdict(float)
    for event in step:
        sums[event["cat"] if event["cat"] in COLOURS else "other"] += event["dur"] / 1000 / workers
    parts, x = [], float(LEFT)
    for kind, total in sorted(sums.items(), key=lambda s: -s[1]):
        parts.append(f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{COLOURS.get(kind, OTHER)}"/>'
                     f'<text x="{x + 17}" y="{y}">{kind} {total:.2f} ms</text>')
        x += 160
    return parts


def main():
    """Reads the trace and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--step", type=int, default=1, help="which step of the trace, from 0")
    parser.add_argument("--title", default="one step")
    arguments = parser.parse_args()
    steps = steps_of(json.loads(arguments.trace.read_text())["traceEvents"])
    arguments.output.write_text(picture(steps[arguments.step], arguments.title))


if __name__ == "__main__":
    main()

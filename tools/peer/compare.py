"""Joins the figures of Megalith and of llama.cpp, measured in turns on the same checkpoint, into one table.

    python compare.py ROUNDS_FOLDER CSV_FILE

A round N is megalith-N.json (megalith bench --json), single-N.jsonl (llama-bench -o jsonl) and batched-N.jsonl
(llama-batched-bench --output-format jsonl). Prints medians over the rounds and the median of each round's ratio, and
appends a line to the CSV file.
"""

import csv
import datetime
import json
import sys
from pathlib import Path
from statistics import median


def lines(path: Path) -> list[dict]:
    """The JSON objects of a file; llama.cpp prints other lines between them."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def read_round(folder: Path, number: int) -> tuple[dict, dict]:
    """Tokens per second of one round by measurement, ours and the peer's."""
    bench = json.loads((folder / f"megalith-{number}.json").read_text())
    ours = {f"decode {d['sequences']}": d["tokens_per_s"] for d in bench["decode"]}
    ours["prefill"] = bench["prefill"]["tokens_per_s"]
    peer = {}
    for line in lines(folder / f"single-{number}.jsonl"):
        peer["decode 1" if line["n_gen"] else "prefill"] = line["avg_ts"]
    for line in lines(folder / f"batched-{number}.jsonl"):
        if line["pl"] > 1:
            peer[f"decode {line['pl']}"] = line["speed_tg"]
    return bench, {name: (ours[name], peer[name]) for name in ours if name in peer}


def main(folder: Path, table: Path):
    """Prints the table and appends the line."""
    count = len(list(folder.glob("megalith-*.json")))
    rounds = [read_round(folder, n) for n in range(count)]
    bench = rounds[-1][0]
    settings = bench["settings"]
    bandwidth = median(b["bandwidth_gb_s"] for b, _ in rounds)
    row = {"date": datetime.date.today().isoformat(), "commit": settings["commit"], "processor": settings["processor"],
           "machine": settings["machine"], "model": settings["model"], "rounds": count,
           "bandwidth_gb_s": f"{bandwidth:.1f}", "fma_gflops": f"{median(b['fma_gflops'] for b, _ in rounds):.0f}"}
    print(f"{settings['model']}: {settings['machine']}; {settings['processor']}; {count} rounds; memory {bandwidth:.1f} GB/s")
    print(f"{'':12} {'megalith':>10} {'llama.cpp':>10} {'ratio':>6} {'share':>6}   (tokens/s; share of bandwidth, or of FMA rate)")
    for name in rounds[0][1]:
        ours, peer = (median(r[name][side] for _, r in rounds) for side in (0, 1))
        ratio = median(r[name][0] / r[name][1] for _, r in rounds)
        share = median(share_of(b, name) for b, _ in rounds)
        print(f"{name:12} {ours:10.1f} {peer:10.1f} {ratio:6.2f} {share:6.2f}")
        key = name.replace(" ", "_")
        row |= {f"{key}_tokens_per_s": f"{ours:.2f}", f"{key}_share": f"{share:.3f}",
                f"{key}_peer_tokens_per_s": f"{peer:.2f}", f"{key}_ratio": f"{ratio:.3f}"}
    new = not table.exists()
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, row.keys())
        if new:
            writer.writeheader()
        writer.writerow(row)


def share_of(bench: dict, name: str) -> float:
    """Share of the machine's limit that a measurement reached."""
    if name == "prefill":
        return bench["prefill"]["fma_share"]
    return next(d["bandwidth_share"] for d in bench["decode"] if f"decode {d['sequences']}" == name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

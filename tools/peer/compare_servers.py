"""Two servers side by side: time to the first token, between tokens, and tokens a second, with 1 and with 4 clients.

    python compare_servers.py URL URL [--tokens 128] [--prompt-words 64] [--rounds 3] [--clients 1 4]

Both get the same prompts, one server after the other in each round. A server may send several tokens in one event, so the
time between tokens is a stream's time after its first event over the tokens that came in it (the server's own count).
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlparse

WORDS = "river stone light paper green house water table music north field paint story train glass cloud".split()


def measure(url, prompt, tokens):
    """Of one stream: seconds to the first token, seconds between tokens, tokens."""
    parts = urlparse(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True, "model": "m",
            "cache_prompt": False, "stream_options": {"include_usage": True}}
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{url}: {response.status} {response.read()[:500]!r}")
    first = last = None
    count = 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if any(choice.get("text") for choice in event.get("choices", [])):
            last = time.perf_counter()
            first = first or last
        count = (event.get("usage") or {}).get("completion_tokens", count)
    connection.close()
    if first is None or count < 2:
        raise SystemExit(f"{url}: a stream of {count} tokens")
    return first - start, (last - first) / (count - 1), count


def measure_many(url, prompts, tokens):
    """As many clients as prompts at once."""
    start = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda prompt: measure(url, prompt, tokens), prompts))
    return found, sum(count for _, _, count in found) / (time.perf_counter() - start)


def compare(urls, clients, options):
    """Rows of what was measured, one for each server."""
    draw = random.Random(clients)
    found = {url: ([], []) for url in urls}
    for _ in range(options.rounds):
        prompts = [" ".join(draw.choices(WORDS, k=options.prompt_words)) for _ in range(clients)]
        for url in urls:
            streams, rate = measure_many(url, prompts, options.tokens)
            found[url][0].extend(streams)
            found[url][1].append(rate)
    for url, (streams, rates) in found.items():
        first, between = ([1000 * stream[i] for stream in streams] for i in range(2))
        middle = statistics.median
        print(f"{clients:>7}  {url:<32}{middle(first):>10.2f}{max(first):>10.2f}{middle(between):>10.3f}"
              f"{max(between):>10.3f}{middle(rates):>11.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("urls", nargs=2, metavar="URL")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-words", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    for url in options.urls:
        measure(url, "warm up", 8)
    print(f"{'clients':>7}  {'server':<32}{'first, ms':>10}{'most':>10}{'next, ms':>10}{'most':>10}{'tokens/s':>11}")
    for clients in options.clients:
        compare(options.urls, clients, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Load: many clients at once that stream, wait, leave, or send nonsense. Nothing may be lost, and nothing may be kept.

    python load.py [--requests 500] [--clients 64] [--model tiny-qwen] [-- FLAGS OF THE SERVER]

Runs the same load twice. The first time is the warm-up; after the second, memory and descriptors must be what they were
before it. Each text that comes to its end must be that of the same request alone.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field

from server import SUM, STORY, Server

WORDS = "Mia Tom has marbles pencils boxes gives finds more left many What How is does 12 48 7 + - ?".split()
NONSENSE = [b"", b"{", b"[]", b"null", b'{"prompt":{}}', b'{"messages":"hi"}', b'{"prompt":"\xff"}',
            b'{"prompt":"a","n":"x"}', b'{"prompt":' + b"[" * 5000, b'{"prompt":"a","max_tokens":-1}',
            b'{"messages":[{"role":"poet"}]}']


@dataclass(frozen=True)
class Call:
    """One request of the load."""
    kind: str  # "stream", "whole", "leave" after some events, "nonsense"
    path: str
    body: str  # JSON
    events: int = 0  # after which a client leaves

    @property
    def key(self):
        return self.path, self.body


@dataclass
class Outcome:
    texts: list = field(default_factory=list)  # (call, text)
    failures: list = field(default_factory=list)
    left: int = 0
    refused: int = 0


def make_call(draw):
    """A request of mixed size."""
    kind = draw.choices(["stream", "whole", "leave", "nonsense"], [55, 20, 15, 10])[0]
    path = draw.choice(["/v1/completions", "/v1/chat/completions"])
    if kind == "nonsense":
        return Call(kind, path, draw.choice(NONSENSE).decode("latin-1"))
    text = draw.choice([SUM, STORY, "Who are you?", " ".join(draw.choices(WORDS, k=draw.choice([5, 40, 300])))])
    body = {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    body |= {"max_tokens": draw.choice([1, 8, 40, 120, 300]), "ignore_eos": draw.random() < 0.3}
    if draw.random() < 0.4:
        body |= {"temperature": 0.9, "top_p": 0.95, "seed": draw.randrange(5)}
    if draw.random() < 0.2:
        body |= {"stop": [draw.choice(["marbles", "12", "is"])]}
    if draw.random() < 0.1:
        body |= {"logprobs": 3} if path == "/v1/completions" else {"logprobs": True, "top_logprobs": 3}
    return Call(kind, path, json.dumps(body), draw.randrange(1, 6))


def text_of(choice):
    """All text of a choice of a whole reply or of an event, its fields kept apart."""
    part = choice.get("message") or choice.get("delta") or choice
    return "".join(part.get(name) or "" for name in ("reasoning_content", "content", "text"))


async def send(writer, call, stream):
    body = call.body.encode("latin-1" if call.kind == "nonsense" else "utf-8")
    if stream:
        body = json.dumps({**json.loads(body), "stream": True}).encode()
    head = f"POST {call.path} HTTP/1.1\r\nHost: load\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def read_head(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), b"chunked" in head.lower()


async def read_chunks(reader):
    while size := int((await reader.readline()).strip() or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def read_stream(reader, call):
    """The joined text, or None where the client leaves before the end."""
    text, finish, events, done = "", None, 0, False
    async for chunk in read_chunks(reader):
        for line in chunk.decode().splitlines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                assert "error" not in event, event
                assert not done, "an event after [DONE]"
                events += 1
                for choice in event["choices"]:
                    text += text_of(choice)
                    finish = choice["finish_reason"] or finish
        if call.kind == "leave" and events >= call.events:
            return None
    assert done and finish in ("stop", "length"), (done, finish)
    return text


async def perform(address, call, outcome):
    reader, writer = await asyncio.open_connection(*address, limit=1 << 24)
    try:
        await send(writer, call, call.kind in ("stream", "leave"))
        status, chunked = await read_head(reader)
        if call.kind == "nonsense":
            assert 400 <= status < 500, (status, call)
            json.loads(await reader.read())["error"]["message"]
            outcome.refused += 1
        elif chunked:
            text = await read_stream(reader, call)
            if text is None:
                outcome.left += 1
            else:
                outcome.texts.append((call, text))
        else:
            reply = json.loads(await reader.read())
            assert status == 200, (status, reply)
            outcome.texts.append((call, text_of(reply["choices"][0])))
    finally:
        writer.close()


async def run_load(address, calls, clients):
    """Keeps so many requests under way until all are done."""
    outcome, waiting = Outcome(), iter(calls)

    async def client():
        for call in waiting:
            try:
                await asyncio.wait_for(perform(address, call, outcome), 300)
            except Exception as error:
                outcome.failures.append(f"{type(error).__name__}: {error}; {call.kind} {call.path} {call.body[:200]}")
    await asyncio.gather(*(client() for _ in range(clients)))
    return outcome


async def texts_alone(address, calls):
    """What each request gives while nothing else runs."""
    texts = {}
    for call in calls:
        if call.key not in texts:
            outcome = Outcome()
            await perform(address, Call("whole", call.path, call.body), outcome)
            texts[call.key] = outcome.texts[0][1]
    return texts


def check(server, calls, clients):
    """Runs the load on a server; returns what is wrong."""
    address = server.host, server.port
    warm = asyncio.run(run_load(address, calls, clients))
    server.wait_idle(10)
    memory, descriptors = server.rss(), server.descriptors()
    start = time.monotonic()
    outcome = asyncio.run(run_load(address, calls, clients))
    seconds = time.monotonic() - start
    server.wait_idle(10)
    time.sleep(0.3)
    wrong = [*warm.failures, *outcome.failures]
    answered = len(outcome.texts) + outcome.left + outcome.refused + len(outcome.failures)
    if answered != len(calls):
        wrong.append(f"{len(calls) - answered} requests were lost")
    after, after_descriptors = server.rss(), server.descriptors()
    if after > memory * 1.05:
        wrong.append(f"memory grew from {memory >> 10} KiB to {after >> 10} KiB")
    if after_descriptors != descriptors:
        wrong.append(f"there were {descriptors} descriptors, and are {after_descriptors}")
    alone = asyncio.run(texts_alone(address, [call for call, _ in outcome.texts]))
    wrong += [f"another text than alone for {call.path} {call.body}:\n  {text!r}\n  {alone[call.key]!r}"
              for call, text in outcome.texts if text != alone[call.key]]
    print(f"{len(calls)} requests of {clients} clients in {seconds:.1f} s: {len(outcome.texts)} whole, {outcome.left} left, "
          f"{outcome.refused} refused; memory {memory >> 10} -> {after >> 10} KiB, descriptors {descriptors} -> "
          f"{after_descriptors}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--model", default="tiny-qwen")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="of the server, after --")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    calls = [make_call(draw) for _ in range(options.requests)]
    with Server("--context", 2048, *options.flags, model=options.model) as server:
        wrong = check(server, calls, options.clients)
        status = server.stop()
        if status != 0:
            wrong.append(f"the server ended with {status}:\n{server.log()}")
    print(*wrong[:20], sep="\n")
    print(f"{len(wrong)} failures" if wrong else "no failures")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

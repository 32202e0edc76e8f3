"""A megalith server of a test's own: started on a free port, asked over plain HTTP, and stopped."""

import ctypes
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEGALITH = os.environ.get("MEGALITH", str(ROOT / "build/release/megalith"))
VOCABULARY = {"tiny-qwen": 1152, "tiny-kimi": 1280}
FIRST_CONTROL = {"tiny-qwen": 1143, "tiny-kimi": 1024}  # tokens from here on are no text
MODELS = ROOT / "models"
WORK = ROOT / "build/clients"

SUM = "What is 45 + 27?"
STORY = ("Mia has 48 marbles. She gives 15 marbles to Tom and then finds 7 more. "
         "How many marbles does Mia have now?")


def user(text):
    """Messages of a chat with one turn."""
    return [{"role": "user", "content": text}]


def die_with_parent():
    """Run in the child before it becomes the server, which so cannot outlive a killed test."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def wait_until(true, seconds, what):
    """Polls until the function returns something true, and returns that."""
    end = time.monotonic() + seconds
    while True:
        value = true()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Reply:
    """A whole answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self):
        """The body; NaN and Infinity, which Python would take, are no JSON."""
        def refuse(name):
            raise ValueError(f"{name} in JSON")
        return json.loads(self.body.decode(), parse_constant=refuse)

    def error(self):
        """The error object, whose form is checked."""
        assert self.status >= 400, self
        assert self.headers["Content-Type"].split(";")[0] == "application/json", self
        found = self.json()
        assert list(found) == ["error"], found
        error = found["error"]
        assert set(error) - {"progress"} == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"], error
        assert isinstance(error["type"], str), error
        assert error["param"] is None or isinstance(error["param"], str), error
        assert error["code"] is None or isinstance(error["code"], (str, int)), error
        return error

    def __repr__(self):
        return f"{self.status} {self.body[:2000]!r}"


class Stream:
    """An answer in server-sent events, read while they come. The connection is closed with it."""

    def __init__(self, connection, response):
        self.connection = connection
        self.response = response
        self.status = response.status
        self.headers = response.headers
        self.comments = 0

    def events(self):
        """The JSON of each event, until [DONE], which must come and be the last."""
        assert self.status == 200, Reply(self.response)
        for line in self.response:
            line = line.decode()
            if line.startswith(":"):
                self.comments += 1
            elif line.startswith("data: [DONE]"):
                rest = self.response.read()
                assert rest.strip() == b"", rest
                self.close()
                return
            elif line.strip():
                assert line.startswith("data: "), line
                yield json.loads(line[len("data: "):])
        raise AssertionError("the stream ended without [DONE]")

    def close(self, reset=False):
        """Closes the connection, in mid-stream too; with a reset where asked for."""
        sock = self.connection.sock or getattr(self.response.fp, "raw", None) and self.response.fp.raw._sock
        if sock is not None and reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.response.close()
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Server:
    """A running `megalith serve`. Use with `with`."""

    def __init__(self, *flags, model="tiny-qwen", bind="127.0.0.1:0", ready=True, key=None, prefix=()):
        self.key = key
        self.model = str(model)
        self.lines = []
        self.bound = threading.Event()
        self.is_ready = threading.Event()
        self.ended = threading.Event()
        self.address = ""
        command = [*prefix, MEGALITH, "serve", "--model", str(model), "--bind", bind, *map(str, flags)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, preexec_fn=die_with_parent)
        self.pid = self.process.pid
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        try:
            self.wait_for(self.bound, 30)
            if ready:
                self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def read_log(self):
        for line in self.process.stderr:
            line = line.decode(errors="replace").rstrip("\n")
            self.lines.append(line)
            found = re.search(r"listening on (?:http://)?(\S+)", line)
            if found and not self.address:
                self.address = found[1].rstrip("/")
                self.bound.set()
            if re.search(r"\bready after [0-9.]+ s", line):
                self.is_ready.set()
        self.ended.set()

    def wait_for(self, event, seconds):
        end = time.monotonic() + seconds
        while not event.wait(0.02):
            if self.ended.is_set() and not event.is_set():
                raise AssertionError(f"the server ended with {self.process.wait()}:\n{self.log()}")
            assert time.monotonic() < end, f"the server is not ready:\n{self.log()}"

    def wait_ready(self, seconds=60):
        """Until the model is loaded."""
        self.wait_for(self.is_ready, seconds)

    def log(self):
        """What the server has printed so far."""
        return "\n".join(self.lines)

    @property
    def host(self):
        return self.address.rpartition(":")[0]

    @property
    def port(self):
        return int(self.address.rpartition(":")[2])

    @property
    def url(self):
        return f"http://{self.address}"

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=60):
        """The exit status, when the server has ended."""
        status = self.process.wait(seconds)
        self.reader.join(5)
        return status

    def stop(self, seconds=60):
        """Asks the server to end; returns its exit status."""
        if self.alive():
            self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self):
        if self.alive():
            self.process.kill()
        self.wait()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(f"the server's log:\n{self.log()}")
        try:
            status = self.process.poll()
            assert status is None or kind is not None or status in (0, 130), f"ended with {status}:\n{self.log()}"
            if status is None:
                # A second signal ends it at once: tests leave nothing running that needs to be drained.
                self.signal(signal.SIGTERM)
                try:
                    self.process.wait(0.5)
                except subprocess.TimeoutExpired:
                    self.signal(signal.SIGTERM)
                    self.process.wait(10)
        finally:
            self.kill()

    def connect(self, timeout=60):
        """A connection for several requests."""
        if self.address.startswith("unix:"):
            return UnixConnection(self.address[len("unix:"):], timeout)
        return http.client.HTTPConnection(self.host.strip("[]"), self.port, timeout=timeout)

    def socket(self, timeout=60):
        """A plain socket to the server."""
        return socket.create_connection((self.host.strip("[]"), self.port), timeout)

    def begin(self, method, path, body=None, headers=None, timeout=60):
        """Sends a request; returns its connection and the response, of which only the headers are read."""
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        headers = dict(headers or {})
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        if self.key:
            headers.setdefault("Authorization", f"Bearer {self.key}")
        connection = self.connect(timeout)
        connection.request(method, path, body, headers)
        return connection, connection.getresponse()

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Asks, and reads the whole answer."""
        connection, response = self.begin(method, path, body, headers, timeout)
        reply = Reply(response)
        connection.close()
        return reply

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, headers=None, timeout=60):
        return self.request("POST", path, body, headers, timeout)

    def ask(self, path, body, headers=None):
        """The JSON of an answer that has to be right."""
        reply = self.post(path, body, headers)
        assert reply.status == 200, reply
        return reply.json()

    def complete(self, prompt=SUM, **fields):
        """A completion; raw text goes on after end tokens, unless `fields` say otherwise."""
        return self.ask("/v1/completions", {"prompt": prompt, "ignore_eos": True, **fields})

    def chat(self, messages=SUM, **fields):
        messages = user(messages) if isinstance(messages, str) else messages
        return self.ask("/v1/chat/completions", {"messages": messages, **fields})

    def tokenize(self, messages, **fields):
        """The ids of a chat's prompt."""
        return self.ask("/tokenize", {"messages": messages, **fields})["tokens"]

    def encode(self, text, **fields):
        return self.ask("/tokenize", {"prompt": text, "add_special_tokens": False, **fields})["tokens"]

    def decode(self, tokens):
        return self.ask("/detokenize", {"tokens": tokens})["prompt"]

    def stream(self, path, body, headers=None):
        """Begins an answer in events."""
        return Stream(*self.begin("POST", path, {**body, "stream": True}, headers))

    def events(self, path, body, headers=None):
        """All events of an answer, which is read to its end."""
        with self.stream(path, body, headers) as stream:
            return list(stream.events())

    def stream_chat(self, messages=SUM, **fields):
        messages = user(messages) if isinstance(messages, str) else messages
        return self.events("/v1/chat/completions", {"messages": messages, **fields})

    def stream_complete(self, prompt=SUM, **fields):
        return self.events("/v1/completions", {"prompt": prompt, "ignore_eos": True, **fields})

    def served(self):
        return self.get("/health").json()["served"]

    def metrics(self):
        """All series: {(name, ((label, value), …)): number}."""
        reply = self.get("/metrics")
        assert reply.status == 200, reply
        return parse_metrics(reply.body.decode())

    def metric(self, name, **labels):
        """The sum of the series with this name and these labels."""
        found = [value for (series, given), value in self.metrics().items()
                 if series == name and set(labels.items()) <= set(given)]
        assert found, f"no {name}{labels}"
        return sum(found)

    def wait_idle(self, seconds=1.0):
        """Until no text runs or waits."""
        wait_until(lambda: self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") == 0,
                   seconds, "no running text")

    def status_of(self, name):
        """A number of /proc/PID/status, such as VmRSS in KiB."""
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+)", text, re.M)[1])

    def rss(self):
        return self.status_of("VmRSS") * 1024

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))


LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"')
SAMPLE = re.compile(rf"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{((?:{LABEL.pattern},?)*)\}})? (\S+)(?: -?\d+)?$")


def parse_metrics(text):
    """Prometheus' text format 0.0.4, whose rules are checked."""
    assert text.endswith("\n")
    series, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"two types of {name}"
            types[name] = kind
        elif line and not line.startswith("#"):
            found = SAMPLE.match(line)
            assert found, line
            key = found[1], tuple(sorted(LABEL.findall(found[2] or "")))
            assert key not in series, f"twice: {line}"
            series[key] = float(found[found.re.groups])
    for name, _ in series:
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in types or types.get(family) == "histogram", f"no type of {name}"
    return series


def text_of(events):
    """A streamed completion's text."""
    return "".join(choice["text"] for event in events for choice in event["choices"])


def message_of(events, index=0):
    """A streamed chat's message and finish_reason: its deltas joined."""
    message, finish = {"content": "", "reasoning_content": "", "tool_calls": []}, None
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == index):
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name) or ""
        for part in delta.get("tool_calls") or []:
            calls = message["tool_calls"]
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": part["type"],
                              "function": {"name": part["function"]["name"], "arguments": ""}})
            calls[part["index"]]["function"]["arguments"] += part["function"].get("arguments") or ""
        finish = choice["finish_reason"] or finish
    return message, finish


def whole_message(reply):
    """A chat's message and finish_reason in the form of message_of()."""
    choice = reply["choices"][0]
    message = choice["message"]
    return {"content": message["content"] or "", "reasoning_content": message.get("reasoning_content") or "",
            "tool_calls": message.get("tool_calls") or []}, choice["finish_reason"]

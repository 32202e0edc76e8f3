#!/usr/bin/env python3
"""The page at /, in a browser: against a server of this test's own, and against a real one where MEGALITH_URL names it.

    tests/server/page_test.py [PAGE.html]

Exit status 77 where there is no chromium-driver.
"""

import contextlib
import http.server
import json
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request

PAGE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                    pathlib.Path(__file__).resolve().parents[2] / "src/server/page.html")
CONTEXT = 4096
ENTER, ESCAPE, SHIFT, TAB, NONE = "\ue007", "\ue00c", "\ue008", "\ue004", "\ue000"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Stub(http.server.ThreadingHTTPServer):
    """Serves the page, and answers chats as `script` says: a function that is given the handler and the request."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), StubHandler)
        self.script = None
        self.bodies = queue.Queue()   # of chat requests
        self.headers = queue.Queue()  # the same
        self.gone = threading.Event()  # a client closed its connection during an answer
        self.health = (200, {"status": "ok"})
        self.models = (200, {"object": "list", "data": [{"id": "stub-model", "object": "model", "created": 1,
                                                         "owned_by": "x", "max_model_len": CONTEXT}]})
        self.paths = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class StubHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, headers=(), content_type="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (("Content-Type", content_type), ("Content-Length", str(len(data))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.server.paths.append(self.path)
        if self.path == "/":
            return self.reply(200, PAGE.read_bytes(), content_type="text/html; charset=utf-8")
        if self.path == "/v1/models":
            return self.reply(*self.server.models)
        if self.path == "/health":
            return self.reply(*self.server.health)
        return self.reply(404, refusal("not found", "not_found_error"))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.paths.append(self.path)
        self.server.bodies.put(body)
        self.server.headers.put(dict(self.headers))
        try:
            self.server.script(self, body)
        except ConnectionError:
            self.server.gone.set()
            self.close_connection = True

    # Of a stream:
    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def raw(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, **chunk):
        self.raw("data: " + json.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", **chunk}) + "\n\n")

    def delta(self, finish=None, **delta):
        self.event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])

    def finish(self, finish="stop", tokens=41, **more):
        self.delta(finish)
        self.event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}, **more)
        self.raw("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


def refusal(message, kind, **more):
    return {"error": {"message": message, "type": kind, "param": None, "code": None, **more}}


def says(content, thoughts="", **more):
    """A script that gives the whole answer, in pieces of seven characters."""

    def script(handler, _):
        handler.begin()
        handler.delta(role="assistant")
        for name, text in (("reasoning_content", thoughts), ("content", content)):
            for at in range(0, len(text), 7):
                handler.delta(**{name: text[at:at + 7]})
        handler.finish(**more)

    return script


ANSWERED = "return document.querySelector('#stop').hidden && !document.querySelector('.live')"
OWN_SCHEMES = ("data:", "blob:", "about:")


class Browser:
    """A headless Chromium by the W3C WebDriver protocol."""

    def __init__(self, driver):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen([driver, f"--port={port}", "--silent"], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,800",
                     "--disable-background-networking", "--disable-component-update", "--no-first-run"]
        options = {"args": arguments, "perfLoggingPrefs": {"enableNetwork": True, "enablePage": False}}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options,
                        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.wait_for_driver()
        created = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.base += "/session/" + created["sessionId"]

    def wait_for_driver(self):
        end = time.monotonic() + 20
        while True:
            try:
                return self.ask("GET", "/status")
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def ask(self, method, path, body=None):
        request = urllib.request.Request(self.base + path, method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def close(self):
        with contextlib.suppress(Exception):
            self.ask("DELETE", "")
        self.process.terminate()
        self.process.wait(10)

    def open(self, url):
        self.ask("POST", "/url", {"url": url})

    def js(self, code, *arguments):
        return self.ask("POST", "/execute/sync", {"script": code, "args": list(arguments)})

    def find(self, selector):
        return self.ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.ask("POST", f"/element/{self.find(selector)}/click", {})

    def press(self, text, where=None):
        """Keys, to an element or to what has the focus. SHIFT is held until NONE."""
        if where:
            self.js("document.querySelector(arguments[0]).focus()", where)
        actions, held = [], []
        for key in text:
            if key == NONE:
                actions += [{"type": "keyUp", "value": held.pop()}]
            elif key == SHIFT:
                held.append(key)
                actions += [{"type": "keyDown", "value": key}]
            else:
                actions += [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def text(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent).join('|')", selector)

    def seen(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].some((e) => e.checkVisibility())", selector)

    def until(self, what, code, *arguments, seconds=10):
        end = time.monotonic() + seconds
        while not (value := self.js(code, *arguments)):
            assert time.monotonic() < end, f"never: {what}; the page says: {self.text('#log')[-500:]!r}"
            time.sleep(0.02)
        return value

    def until_text(self, selector, text):
        self.until(f"{text!r} in {selector}", "return [...document.querySelectorAll(arguments[0])]"
                   ".some((e) => e.textContent.includes(arguments[1]))", selector, text)

    def until_answered(self):
        self.until("the end of the answer", ANSWERED)

    def log(self, kind):
        return self.ask("POST", "/se/log", {"type": kind})

    def errors(self):
        """Messages of the page's own code; of the network, only what is not a refusal that the test asked for."""
        return [entry["message"] for entry in self.log("browser")
                if entry["level"] in ("SEVERE", "WARNING") and entry.get("source") != "network"]

    def requested(self):
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [message["params"]["request"]["url"] for message in messages
                if message["method"] == "Network.requestWillBeSent"]


class Tests:
    """Each `check_` is a test; the page is fresh, with an empty conversation."""

    def __init__(self, browser, stub):
        self.browser, self.stub = browser, stub
        self.browser.open(self.stub.url + "/")

    def fresh(self):
        self.stub.script = says("ok")
        self.stub.gone.clear()
        self.stub.health = (200, {"status": "ok"})
        for q in (self.stub.bodies, self.stub.headers):
            while not q.empty():
                q.get()
        self.browser.js("sessionStorage.clear(); localStorage.clear();")
        self.browser.open(self.stub.url + "/")
        self.browser.until_text("#model", "stub-model")

    def say(self, text, script=None, wait=True):
        if script:
            self.stub.script = script
        self.browser.press(text + ENTER, "#words")
        body = self.stub.bodies.get(timeout=10)
        if wait:
            self.browser.until_answered()
        return body

    def check_text_appears_while_it_streams(self):
        go_on = threading.Event()

        def script(handler, _):
            handler.begin()
            handler.raw(": ping\n\n")
            handler.delta(role="assistant")
            handler.delta(content="First ")
            # An event that comes in two pieces, cut within a character.
            data = 'data: {"choices":[{"index":0,"delta":{"content":"é half"}}]}\n\n'.encode()
            cut = data.index("é".encode()) + 1
            handler.raw(data[:cut])
            handler.raw(data[cut:])
            assert go_on.wait(10)
            handler.delta(content=" and second.")
            handler.finish(metrics={"tokens_per_second": 312.4, "speculative_decoding": {"mean_acceptance_length": 4.307}})

        self.say("Hello", script, wait=False)
        self.browser.until_text(".text p", "First é half")
        assert self.browser.seen("#stop") and not self.browser.seen("#send")
        assert "second" not in self.browser.text(".text")
        assert self.browser.js("return document.querySelector('.answer').getAttribute('aria-busy')") == "true"
        go_on.set()
        self.browser.until_answered()
        assert self.browser.text(".text") == "First é half and second."
        assert self.browser.text(".figures") == "41 tokens · 312 tokens/s · 4.31 tokens per step"
        assert self.browser.text("#room") == "50 of 4,096 tokens"
        assert self.browser.text("#status") == "The answer is complete."

    def check_thinking_is_open_while_it_lasts_and_folds_then(self):
        go_on = threading.Event()

        def script(handler, _):
            handler.begin()
            handler.delta(reasoning_content="Let me <b>see</b>")
            assert go_on.wait(10)
            handler.delta(reasoning_content=" it.")
            handler.delta(content="Seen.")
            handler.finish()

        self.say("Think", script, wait=False)
        self.browser.until_text(".thoughts > div", "Let me <b>see</b>")
        assert self.browser.js("return document.querySelector('.thoughts').open")
        assert self.browser.text(".thoughts summary") == "Thinking…"
        go_on.set()
        self.browser.until_answered()
        assert not self.browser.js("return document.querySelector('.thoughts').open")
        assert self.browser.text(".thoughts summary").startswith("Thought for ")
        self.browser.click(".thoughts summary")
        assert self.browser.seen(".thoughts > div") and self.browser.text(".thoughts > div") == "Let me <b>see</b> it."
        body = self.say("More")
        assert body["messages"][1] == {"role": "assistant", "content": "Seen.", "reasoning_content": "Let me <b>see</b> it."}

    def endless(self, handler, _):
        handler.begin()
        for i in range(2000):
            handler.delta(content=f"{i} ")
            time.sleep(0.01)

    def check_stopping_closes_the_connection_and_keeps_the_text(self):
        for stop in (lambda: self.browser.click("#stop"), lambda: self.browser.press(ESCAPE)):
            self.stub.gone.clear()
            self.say("Count", self.endless, wait=False)
            self.browser.until("text", "return [...document.querySelectorAll('.text')].at(-1)?.textContent.includes('5 ')")
            stop()
            assert self.stub.gone.wait(5), "the server did not see the client go"
            self.browser.until_answered()
            assert self.browser.text(".turn:last-child .figures").endswith("stopped")
            assert self.browser.text(".trouble") == ""
            assert self.browser.js("return document.activeElement.id") == "words"
        body = self.say("Go on", says("ok"))
        assert [m["role"] for m in body["messages"]] == ["user", "assistant"] * 2 + ["user"]
        assert body["messages"][1]["content"].startswith("0 1 2 3 4 5 ")

    def check_keys(self):
        body = self.say("one" + SHIFT + ENTER + NONE + "two")
        assert body["messages"] == [{"role": "user", "content": "one\ntwo"}]
        assert self.browser.js("return document.querySelector('#words').value") == ""
        self.browser.press("  " + ENTER, "#words")
        assert self.browser.js("return document.querySelector('#send').disabled")
        # While an answer comes, Enter sends nothing.
        self.say("Count", self.endless, wait=False)
        self.browser.press("more" + ENTER, "#words")
        self.browser.press(ESCAPE)
        self.browser.until_answered()
        assert self.stub.bodies.empty()
        assert self.browser.js("return document.querySelector('#words').value.trim()") == "more"

    def set(self, **values):
        self.browser.click("#open-settings")
        for name, value in values.items():
            self.browser.js("const e = document.getElementById(arguments[0]); e.value = arguments[1];"
                            "e.dispatchEvent(new Event('input', {bubbles: true}))", name.replace("_", "-"), value)
        self.browser.click("#fields button[type=submit]")

    def check_settings_reach_the_request(self):
        body = self.say("Hi")
        assert body == {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "model": "stub-model",
                        "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "max_tokens": CONTEXT}
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        self.set(system="Be brief.", temperature="0.7", top_p="0.95", max_tokens="99", seed="7", thinking="off", key="k1",
                 tools=json.dumps([tool]))
        self.stub.headers.get()
        body = self.say("Again")
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (body["temperature"], body["top_p"], body["max_tokens"], body["seed"]) == (0.7, 0.95, 99, 7)
        assert body["reasoning_effort"] == "none" and body["tools"] == [tool]
        assert self.stub.headers.get()["Authorization"] == "Bearer k1"
        self.set(thinking="on", temperature="0", tools="")
        body = self.say("Again")
        assert body["chat_template_kwargs"] == {"enable_thinking": True} and "reasoning_effort" not in body
        assert body["temperature"] == 0 and "tools" not in body
        self.set(thinking="high")
        assert self.say("Again")["reasoning_effort"] == "high"
        # They outlast the page; the key is kept for the tab only.
        self.browser.open(self.stub.url + "/")
        assert self.browser.js("return document.getElementById('system').value") == "Be brief."
        assert self.browser.js("return Object.values(localStorage).join().includes('k1')") is False

    def check_wrong_settings_are_not_sent(self):
        self.browser.js("document.getElementById('temperature').value = '-1'")
        self.browser.press("Hi" + ENTER, "#words")
        self.browser.until("the dialog", "return document.querySelector('#settings').open")
        self.browser.js("document.getElementById('temperature').value = ''; document.getElementById('tools').value = '{'")
        self.browser.click("#fields button[type=submit]")
        assert self.browser.js("return document.querySelector('#settings').open")
        assert self.stub.bodies.empty()
        self.browser.js("document.getElementById('tools').value = ''")

    def check_a_loading_server_is_waited_for(self):
        loading = refusal("reading weights: 40%", "unavailable_error", code=503, progress=0.4)
        ready = threading.Event()

        def script(handler, body):
            if not ready.is_set():
                return handler.reply(503, loading)
            return says("Ready.")(handler, body)

        self.stub.health = (503, loading)
        self.say("Hi", script, wait=False)
        self.browser.until_text(".trouble .detail", "reading weights: 40%")
        assert abs(self.browser.js("return document.querySelector('.trouble progress').value") - 0.4) < 1e-6
        assert self.browser.js("return document.querySelector('.trouble').getAttribute('role')") == "alert"
        ready.set()
        self.stub.health = (200, {"status": "ok"})
        self.browser.until_text(".text", "Ready.")
        assert self.browser.text(".trouble") == ""
        # Waiting can be stopped.
        ready.clear()
        self.stub.health = (503, loading)
        self.browser.until_answered()
        self.say("Hi", wait=False)
        self.browser.until_text(".trouble .detail", "reading weights")
        self.browser.press(ESCAPE)
        self.browser.until_answered()
        assert self.browser.text(".trouble") == ""

    def check_a_missing_key_is_asked_for(self):
        def script(handler, body):
            if handler.headers["Authorization"] != "Bearer right":
                return handler.reply(401, refusal("bad key", "authentication_error", code="invalid_api_key"))
            return says("Welcome.")(handler, body)

        self.say("Hi", script, wait=False)
        self.browser.until("the dialog", "return document.querySelector('#settings').open")
        assert self.browser.js("return document.activeElement.id") == "key"
        self.browser.press("right" + ENTER)
        self.browser.until_text(".text", "Welcome.")
        assert self.browser.text(".said") == "Hi" and self.browser.text(".trouble") == ""

    def check_refusals_are_said_in_plain_words(self):
        cases = [(429, refusal("queue full", "rate_limit_error"), "busy", [("Retry-After", "3")]),
                 (400, refusal("too long: 9000 of 4096", "invalid_request_error", code="context_length_exceeded"),
                  "longer than the model’s context", []),
                 (400, refusal("temperature: expected less", "invalid_request_error"), "temperature: expected less", []),
                 (413, refusal("body", "invalid_request_error"), "too large", []),
                 (500, refusal("logits", "server_error"), "failed to answer", []),
                 (502, b"<html><script>window.hacked = 1</script>", "failed to answer", [])]
        for status, body, words, headers in cases:
            self.fresh()
            self.say("Hi", lambda handler, _, s=status, b=body, h=headers: handler.reply(s, b, h))
            self.browser.until_text(".trouble", words)
            if status == 429:
                assert "Try again in 3 seconds." in self.browser.text(".trouble")
                self.stub.script = says("Now.")
                self.browser.js("[...document.querySelectorAll('.trouble button')].at(-1).click()")
                self.browser.until_text(".text", "Now.")
                assert self.browser.text(".trouble") == ""

    def check_a_lost_connection_keeps_what_came(self):
        def script(handler, _):
            handler.begin()
            handler.delta(content="Half an ans")
            time.sleep(0.2)
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)

        self.say("Hi", script)
        self.browser.until_text(".trouble", "The connection was lost.")
        assert self.browser.text(".text") == "Half an ans"
        self.stub.script = says("Whole.")
        self.browser.js("[...document.querySelectorAll('.trouble button')].at(-1).click()")
        self.browser.until_text(".text", "Whole.")
        assert self.browser.text(".text") == "Whole."

        def failing(handler, _):
            handler.begin()
            handler.delta(content="Some")
            handler.event(**refusal("the engine died", "server_error"))
            handler.raw("data: [DONE]\n\n")
            handler.wfile.write(b"0\r\n\r\n")

        self.say("Hi", failing)
        self.browser.until_text(".trouble", "the engine died")

    def check_model_text_is_inert(self):
        evil = ("<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script> [a](javascript:window.hacked=1)\n\n"
                "```html\n<script>window.hacked = 1</script>\n```\n\n- <iframe src=\"http://127.0.0.1:9/\"></iframe>\n"
                "| <svg onload=window.hacked=1> |\n\n`<style>*{display:none}</style>` **<b onclick=x>b</b>**")
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "<u>n</u>", "arguments": "{\"a\":\"<i>\"}"}}

        def script(handler, body):
            handler.begin()
            handler.delta(reasoning_content=evil)
            handler.delta(content=evil)
            handler.delta(tool_calls=[call])
            handler.finish("tool_calls")

        self.say("<b>me</b><script>window.hacked=1</script>", script)
        assert not self.browser.js("return document.querySelector('#log :is(img, script, iframe, svg, style, u, i, b, a)')")
        assert self.browser.js("return window.hacked === undefined")
        assert self.browser.text(".code code") == "<script>window.hacked = 1</script>"
        assert self.browser.text(".said") == "<b>me</b><script>window.hacked=1</script>"
        # Even code of the page could not make elements of text.
        assert self.browser.errors() == []
        assert self.browser.js("try { document.createElement('p').innerHTML = '<b>'; return false } catch { return true }")
        assert "TrustedHTML" in str(self.browser.errors())

    def check_markdown_is_the_same_wherever_it_is_cut(self):
        text = ("# Title\nA **bold** and *soft* `co*de` word, 2 * 3 * 4, 5*6*7, **open\nnext line\n\n- one\n- two **x**\n"
                "  - in\n\n  more\n- three\n\n3. c\n4. d\n\n```cpp\nint a[] = {**p};\n\n  `x` ``\n```\n"
                "after\n---\n> said\n> so\n\n"
                "| a | b |\n|---|---|\n\n1986 was. \nYear\n2020. no list\n* * *\nend `open and ***both*** x")
        expected = ("<h3>Title</h3><p>A <strong>bold</strong> and <em>soft</em> <code>co*de</code> word, 2 * 3 * 4, 5*6*7, "
                    "**open\nnext line</p><ul><li>one</li><li>two <strong>x</strong><ul><li>in</li></ul><p>more</p></li>"
                    "<li>three</li></ul><ol start=\"3\"><li>c</li><li>d</li></ol>"
                    "<pre><code>int a[] = {**p};\n\n  `x` ``</code></pre><p>after</p><hr><blockquote>said\nso</blockquote>"
                    "<pre>| a | b |\n|---|---|</pre><p>1986 was. \nYear\n2020. no list</p><hr>"
                    "<p>end `open and ***both*** x</p>")
        read = """
            const copy = [...document.querySelectorAll('.text')].at(-1).cloneNode(true);
            for (const pre of copy.querySelectorAll('.code')) pre.replaceWith(pre.querySelector('pre'));
            for (const e of copy.querySelectorAll('*'))
              for (const name of e.getAttributeNames()) if (name !== 'start') e.removeAttribute(name);
            return copy.innerHTML;"""
        for size in (1, 2, 5, len(text)):
            def script(handler, _, size=size):
                handler.begin()
                for at in range(0, len(text), size):
                    handler.delta(content=text[at:at + size])
                    # So that the page draws in between.
                    time.sleep(0.001 * min(size, 5))
                handler.finish()

            self.say("Hi", script)
            assert self.browser.js(read) == expected, f"pieces of {size}: {self.browser.js(read)}"

    def check_long_answers_cost_what_is_new(self):
        tokens = 10000

        def script(handler, _):
            handler.begin()
            for at in range(0, tokens, 50):
                handler.raw("".join('data: {"choices":[{"index":0,"delta":{"content":"word%d **b** "}}]}\n\n' % i
                                    for i in range(at, at + 50)))
            handler.finish(tokens=tokens)

        self.browser.js("""
            window.removed = 0;
            new MutationObserver((all) => { for (const m of all) window.removed += m.removedNodes.length; })
              .observe(document.getElementById('log'), {subtree: true, childList: true});""")
        start = time.monotonic()
        self.say("Long", script)
        assert time.monotonic() - start < 15
        assert self.browser.text(".text").count("word") == tokens
        assert self.browser.js("return document.querySelectorAll('.text strong').length") == tokens
        removed = self.browser.js("return window.removed")
        assert removed < 50, f"{removed} nodes were replaced"

    def check_tool_calls_are_shown_and_take_results(self):
        def script(handler, _):
            handler.begin()
            for i, name in enumerate(("weather", "clock")):
                handler.delta(tool_calls=[{"index": i, "id": f"call_{i}", "type": "function", "function": {"name": name}}])
                for part in ('{"city": ', '"Bern"}'):
                    handler.delta(tool_calls=[{"index": i, "function": {"arguments": part}}])
            handler.finish("tool_calls")

        self.say("Weather?", script)
        assert self.browser.text(".call strong") == "weather|clock"
        assert json.loads(self.browser.text(".call:first-child pre")) == {"city": "Bern"}
        assert self.browser.js("return document.querySelector('#words').labels[0].textContent") == "Result of weather"
        self.stub.script = says("Sunny.")
        self.browser.press("sun" + ENTER, "#words")
        self.browser.until_text("#words-label", "Result of clock")
        assert self.stub.bodies.empty()
        body = self.say("noon")
        assert body["messages"][1]["tool_calls"][1]["function"] == {"name": "clock", "arguments": '{"city": "Bern"}'}
        assert body["messages"][2:] == [
            {"role": "tool", "tool_call_id": "call_0", "name": "weather", "content": "sun"},
            {"role": "tool", "tool_call_id": "call_1", "name": "clock", "content": "noon"}]

    def act(self, name):
        self.browser.js("[...document.querySelectorAll('button')].filter((b) => b.textContent === arguments[0]"
                        " && b.checkVisibility()).at(-1).click()", name)

    def check_regenerate_edit_and_a_new_conversation(self):
        self.say("First", says("one"))
        self.say("Second", says("two"))
        self.stub.script = says("three")
        self.act("Regenerate")
        assert [m["content"] for m in self.stub.bodies.get(timeout=5)["messages"]] == ["First", "one", "Second"]
        self.browser.until_answered()
        assert self.browser.text(".text") == "one|three"
        self.act("Edit")
        assert self.browser.js("return document.querySelector('#words').value") == "Second"
        self.browser.press(ESCAPE)
        assert self.browser.js("return document.querySelector('#words').value") == ""
        self.act("Edit")
        body = self.say(" and a half", says("four"))
        assert [m["content"] for m in body["messages"]] == ["First", "one", "Second and a half"]
        assert self.browser.text(".text") == "one|four" and self.browser.text(".said") == "First|Second and a half"
        # A conversation outlasts its page, as long as the tab is there.
        self.browser.open(self.stub.url + "/")
        assert self.browser.text(".text") == "one|four" and self.browser.text(".said") == "First|Second and a half"
        self.browser.click("#new")
        assert self.browser.text("#log") == "" and self.browser.seen("#welcome")
        assert len(self.say("Fresh")["messages"]) == 1
        # Also in the middle of an answer, which is stopped then.
        self.say("Count", self.endless, wait=False)
        self.browser.until_text(".text", "5 ")
        self.browser.click("#new")
        assert self.stub.gone.wait(5), "the server did not see the client go"
        self.browser.until("an empty page", "return !document.querySelector('#log').hasChildNodes()")
        assert len(self.say("Fresh", says("ok"))["messages"]) == 1

    def check_copying_gives_the_text_as_the_model_wrote_it(self):
        self.say("Hi", says("A **b**\n\n```py\nx = 1\n```\n"))
        self.browser.js("window.copied = []; navigator.clipboard.writeText = async (text) => { window.copied.push(text); }")
        self.act("Copy answer")
        self.act("Copy")
        self.browser.until("copies", "return window.copied.length === 2")
        assert self.browser.js("return window.copied") == ["A **b**\n\n```py\nx = 1\n```\n", "x = 1"]

    def colours(self):
        return self.browser.js("""
            const rgb = (c) => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
            const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
              .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
            const page = rgb(getComputedStyle(document.body).backgroundColor);
            const contrast = (e) => { const a = light(rgb(getComputedStyle(e).color)), b = light(page);
                                      return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); };
            return {page: light(page), ink: contrast(document.body), soft: contrast(document.querySelector('#model')),
                    quiet: contrast(document.querySelector('.figures'))};""")

    def emulate(self, scheme):
        self.browser.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]}})

    def check_light_and_dark(self):
        self.say("Hi")
        for scheme, button in (("dark", "Light"), ("light", "Dark")):
            self.emulate(scheme)
            self.browser.until_text("#theme", button)
            colours = self.colours()
            assert (colours["page"] < 0.05) == (scheme == "dark") and (colours["page"] > 0.8) == (scheme == "light"), colours
            assert colours["ink"] >= 7 and colours["soft"] >= 4.5 and colours["quiet"] >= 4.5, colours
        self.browser.click("#theme")
        assert self.colours()["page"] < 0.05
        self.browser.open(self.stub.url + "/")
        assert self.browser.js("return document.documentElement.dataset.theme") == "dark"
        self.browser.click("#theme")
        self.emulate("dark")
        assert self.browser.js("return getComputedStyle(document.documentElement).colorScheme") == "light"
        self.emulate("")

    def check_every_control_has_a_name_and_the_focus_goes_round(self):
        self.say("Hi", says("ok\n\n```\ncode\n```", thoughts="hm"))
        nameless = self.browser.js("""
            const controls = 'button, input, select, textarea, summary, [role=region], [role=log], dialog';
            return [...document.querySelectorAll(controls)]
              .filter((e) => !(e.textContent.trim() && e.matches('button, summary')) && !e.labels?.length
                             && !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby'))
              .map((e) => e.outerHTML.slice(0, 100));""")
        assert nameless == [], nameless
        assert self.browser.js("return document.documentElement.lang") == "en"
        assert self.browser.js("return document.querySelectorAll('h1').length") == 1
        order = []
        self.browser.js("document.activeElement.blur(); document.querySelector('header h1').tabIndex = -1;"
                        "document.querySelector('header h1').focus()")
        for _ in range(12):
            self.browser.press(TAB)
            focused = self.browser.js("""
                const e = document.activeElement, style = getComputedStyle(e);
                const marked = style.outlineStyle !== 'none' || e.matches('#words');
                return [e.id || e.textContent.trim().split(' ')[0], marked]""")
            assert focused[1], f"no visible focus on {focused[0]}"
            order.append(focused[0])
            if focused[0] == "words":
                break
        assert order[:3] == ["new", "open-settings", "theme"] and order[-1] == "words", order
        assert order[3:-1] == ["Edit", "Thought", "Copy", "code", "Copy", "Regenerate"], order
        # The dialog keeps the focus, and gives it back.
        self.browser.press(ENTER, "#open-settings")
        assert self.browser.js("return document.querySelector('#settings').contains(document.activeElement)")
        self.browser.press(ESCAPE)
        assert not self.browser.js("return document.querySelector('#settings').open")

    def check_a_small_screen_needs_no_sideways_scrolling(self):
        self.browser.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": 360, "height": 640, "deviceScaleFactor": 2, "mobile": True}})
        try:
            self.say("w" * 300, says("x" * 300 + "\n\n```\n" + "y" * 300 + "\n```\n\n| " + "z" * 300 + " |"))
            assert self.browser.js("return document.documentElement.scrollWidth") <= 360
            assert self.browser.js("const s = document.querySelector('#scroll'); return s.scrollWidth <= s.clientWidth")
            assert self.browser.seen("#send") and self.browser.seen("#open-settings")
        finally:
            self.browser.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}})

    def check_reading_back_is_left_alone(self):
        go_on = threading.Event()

        def script(handler, _):
            handler.begin()
            for i in range(200):
                handler.delta(content=f"line {i}\n\n")
            assert go_on.wait(10)
            for i in range(50):
                handler.delta(content=f"later {i}\n\n")
            handler.finish()

        self.say("Hi", script, wait=False)
        self.browser.until_text(".text", "line 199")
        self.browser.until("the end in sight", "const s = document.querySelector('#scroll');"
                           "return s.scrollHeight - s.scrollTop - s.clientHeight < 60")
        self.browser.js("document.querySelector('#scroll').scrollTop = 500")
        self.browser.until("the button to the end", "return !document.querySelector('#end').hidden")
        go_on.set()
        self.browser.until_answered()
        assert self.browser.js("return document.querySelector('#scroll').scrollTop") == 500
        self.browser.click("#end")
        self.browser.until("the end in sight", "return document.querySelector('#end').hidden")


def run_checks(browser, stub):
    tests = Tests(browser, stub)
    failed = 0
    for name in [name for name in dir(tests) if name.startswith("check_")]:
        start = time.monotonic()
        try:
            tests.fresh()
            getattr(tests, name)()
            errors = browser.errors()
            assert errors == [], f"the console says: {errors}"
            requested = browser.requested()
            assert stub.url + "/v1/models" in requested, "requests are not seen"
            foreign = [url for url in requested if not url.startswith((stub.url + "/", *OWN_SCHEMES))]
            assert foreign == [], f"requests left the origin: {foreign}"
            print(f"ok      {name[6:]} ({time.monotonic() - start:.1f} s)")
        except Exception as error:  # pylint: disable=broad-except
            failed += 1
            print(f"FAILED  {name[6:]}: {type(error).__name__}: {error}")
            frame = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__][-1]
            print(f"        line {frame.lineno}: {frame.line}")
    return failed


def check_real(browser, url):
    """A conversation with a real server, whatever its model says."""
    browser.open(url + "/")
    browser.js("sessionStorage.clear(); localStorage.clear();")
    browser.open(url + "/")
    browser.until("the model's name", "return document.querySelector('#model').textContent", seconds=60)
    browser.js("document.getElementById('max-tokens').value = '24'")
    for words in ("Hello", "And then?"):
        browser.press(words + ENTER, "#words")
        browser.until("the answer", ANSWERED, seconds=120)
        assert browser.text(".trouble") == "", browser.text(".trouble")
        assert "token" in browser.text(".turn:last-child .figures"), "no usage came"
    assert browser.text("#room").split(" of ")[0] != "", "no context"
    assert browser.errors() == []
    assert [u for u in browser.requested() if not u.startswith((url + "/", *OWN_SCHEMES))] == []
    print(f"ok      a conversation with {url}")


def main():
    driver = shutil.which("chromedriver")
    if not driver or not (shutil.which("chromium") or shutil.which("google-chrome")):
        print("skipped: no chromium and chromium-driver")
        return 77
    url = os.environ.get("MEGALITH_URL", "").rstrip("/")
    browser = Browser(driver)
    try:
        if url:
            check_real(browser, url)
            return 0
        stub = Stub()
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        failed = run_checks(browser, stub)
        stub.shutdown()
    finally:
        browser.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

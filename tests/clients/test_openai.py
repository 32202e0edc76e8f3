"""openai-python against the server."""

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from pydantic import BaseModel

from server import STORY, SUM, Server, user, wait_until
from test_cases import TOOL
from test_contract import deep_qwen


class Counter(httpx.HTTPTransport):
    """Counts what goes over the wire: retries too."""

    def __init__(self):
        super().__init__()
        self.requests = 0

    def handle_request(self, request):
        self.requests += 1
        return super().handle_request(request)


def client_of(server, key="none", **fields):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, **fields)


@pytest.fixture(scope="module")
def client(qwen):
    with client_of(qwen, max_retries=0) as client:
        yield client


@pytest.fixture(params=["qwen", "kimi"])
def either_client(request):
    with client_of(request.getfixturevalue(request.param), max_retries=0) as client:
        yield client


class TestModels:
    def test_list(self, client):
        [model] = client.models.list().data
        assert (model.id, model.object) == ("tiny-qwen", "model") and model.created > 0
        assert model.max_model_len == 4096

    def test_retrieve(self, client):
        assert client.models.retrieve("tiny-qwen").id == "tiny-qwen"
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-4")
        assert caught.value.code == "model_not_found"


class TestCompletions:
    def ask(self, client, prompt=SUM, **fields):
        """Raw text goes on after end tokens."""
        return client.completions.create(model="tiny-qwen", prompt=prompt, extra_body={"ignore_eos": True}, **fields)

    def test_whole_and_streamed(self, either_client):
        whole = self.ask(either_client, max_tokens=40)
        assert whole.object == "text_completion" and whole.choices[0].finish_reason in ("stop", "length")
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        chunks = list(self.ask(either_client, max_tokens=40, stream=True, stream_options={"include_usage": True}))
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    def test_n(self, client):
        reply = self.ask(client, n=3, temperature=1.5, seed=1, max_tokens=20)
        assert sorted(choice.index for choice in reply.choices) == [0, 1, 2]
        assert len({choice.text for choice in reply.choices}) > 1

    def test_stop(self, client):
        full = self.ask(client, STORY, max_tokens=50).choices[0].text
        stopped = self.ask(client, STORY, max_tokens=50, stop=[full[10:14]])
        assert stopped.choices[0].text == full[:full.index(full[10:14])]
        assert stopped.choices[0].finish_reason == "stop"

    def test_logprobs(self, client):
        logprobs = self.ask(client, logprobs=3, max_tokens=6).choices[0].logprobs
        assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 6
        assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs))

    def test_echo_scores_the_prompt(self, either_client):
        choice = self.ask(either_client, echo=True, logprobs=1, max_tokens=0).choices[0]
        assert choice.text.endswith(SUM) and choice.logprobs.token_logprobs[0] is None
        assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])

    def test_seeds(self, client):
        texts = [self.ask(client, seed=seed, temperature=1.5, max_tokens=40).choices[0].text for seed in (1, 1, 2, 3)]
        assert texts[0] == texts[1] and len(set(texts)) > 1

    def test_lists_of_prompts_and_of_ids(self, client, qwen):
        assert [choice.index for choice in self.ask(client, [SUM, STORY], max_tokens=2).choices] == [0, 1]
        texts = [self.ask(client, prompt, max_tokens=9).choices[0].text for prompt in (SUM, qwen.encode(SUM))]
        assert texts[0] == texts[1]


class TestChat:
    def ask(self, client, prompt=SUM, **fields):
        return client.chat.completions.create(model="tiny-qwen", messages=user(prompt), **fields)

    def test_whole(self, either_client):
        reply = self.ask(either_client)
        message = reply.choices[0].message
        assert (message.role, message.content, reply.choices[0].finish_reason) == ("assistant", "45 + 27 = 72.", "stop")
        assert "72" in message.reasoning_content and not message.tool_calls
        assert 0 < reply.usage.completion_tokens_details.reasoning_tokens < reply.usage.completion_tokens

    def test_streamed(self, either_client):
        whole = self.ask(either_client)
        content, thoughts, finishes = "", "", []
        for chunk in self.ask(either_client, stream=True, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                content += choice.delta.content or ""
                thoughts += getattr(choice.delta, "reasoning_content", None) or ""
                finishes += [choice.finish_reason] if choice.finish_reason else []
        assert content == whole.choices[0].message.content
        assert thoughts == whole.choices[0].message.reasoning_content
        assert finishes == ["stop"] and chunk.usage.completion_tokens == whole.usage.completion_tokens

    def test_the_stream_helper(self, either_client):
        with either_client.chat.completions.stream(model="tiny-qwen", messages=user(SUM)) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert final.choices[0].message.content == "45 + 27 = 72."
        assert final.choices[0].finish_reason == "stop"

    def test_n_and_the_other_budget(self, client):
        reply = self.ask(client, n=2, temperature=1, seed=1, max_completion_tokens=10)
        assert [choice.index for choice in reply.choices] == [0, 1] and reply.usage.completion_tokens <= 20

    def test_logprobs(self, client):
        content = self.ask(client, logprobs=True, top_logprobs=2, max_tokens=5).choices[0].logprobs.content
        assert len(content) == 5
        assert all(len(entry.top_logprobs) == 2 and entry.top_logprobs[0].token == entry.token for entry in content)
        assert all(bytes(entry.bytes).decode() == entry.token for entry in content)

    def test_reasoning_effort(self, client):
        message = self.ask(client, reasoning_effort="none", max_tokens=40).choices[0].message
        assert message.content and not getattr(message, "reasoning_content", None)

    def test_extra_fields(self, client):
        reply = self.ask(client, max_tokens=300, extra_body={"ignore_eos": True, "top_k": 1, "unknown": 1})
        assert reply.usage.completion_tokens == 300

    def test_request_ids(self, client):
        reply = self.ask(client, max_tokens=1, extra_headers={"X-Request-Id": "mine"})
        assert reply._request_id == "mine"

    def test_a_conversation(self, client):
        messages = user(SUM)
        for question in ("And 10 + 5?", "Who are you?"):
            answer = client.chat.completions.create(model="tiny-qwen", messages=messages).choices[0].message
            messages += [answer.model_dump(exclude_none=True), *user(question)]
        assert len(messages) == 5


class TestTools:
    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
    def test_required(self, either_client, choice):
        fields = {"model": "m", "messages": user("weather in Oslo?"), "tools": [TOOL], "tool_choice": choice,
                  "reasoning_effort": "none", "max_tokens": 400}
        try:
            reply = either_client.chat.completions.create(**fields).choices[0]
        except openai.BadRequestError as error:
            assert error.param == "tool_choice"
            pytest.skip("refused, by its name")
        if reply.finish_reason == "length":
            pytest.skip("the model does not come to an end")
        [call] = reply.message.tool_calls
        assert reply.finish_reason == "tool_calls" and call.id and call.function.name == "get_weather"
        assert isinstance(json.loads(call.function.arguments)["city"], str)
        with either_client.chat.completions.stream(**fields) as stream:
            list(stream)
            [streamed] = stream.get_final_completion().choices[0].message.tool_calls
        assert streamed.function.arguments == call.function.arguments
        answered = [*fields["messages"], reply.message.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": call.id, "content": "4 C"}]
        assert either_client.chat.completions.create(model="m", messages=answered, tools=[TOOL], max_tokens=5).choices


class Left(BaseModel):
    name: str
    left: int


class TestStructuredOutput:
    fields = {"model": "m", "messages": user(STORY), "reasoning_effort": "none", "max_tokens": 300, "temperature": 0}

    def test_parse(self, either_client):
        try:
            reply = either_client.chat.completions.parse(response_format=Left, **self.fields)
        except openai.LengthFinishReasonError:
            pytest.skip("the model does not come to an end")
        assert isinstance(reply.choices[0].message.parsed, Left)

    def test_json_object(self, client):
        choice = client.chat.completions.create(response_format={"type": "json_object"}, **self.fields).choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        else:
            assert choice.message.content.lstrip().startswith("{")


class TestErrors:
    def test_bad_requests_are_sent_once_and_name_the_field(self, qwen):
        transport = Counter()
        with client_of(qwen, http_client=httpx.Client(transport=transport)) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                client.completions.create(model="m", prompt=SUM, max_tokens=-1)
            assert (caught.value.param, caught.value.type, transport.requests) == ("max_tokens", "invalid_request_error", 1)
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(model="m", messages=user("What is 1 + 1? " * 2000))
            assert (caught.value.code, caught.value.param, transport.requests) == ("context_length_exceeded", "messages", 2)
            with pytest.raises(openai.NotFoundError):
                client.post("/nope", body={}, cast_to=object)
            assert transport.requests == 3

    def test_keys(self):
        with Server("--api-key", "right") as server:
            transport = Counter()
            with client_of(server, "wrong", http_client=httpx.Client(transport=transport)) as client:
                with pytest.raises(openai.AuthenticationError) as caught:
                    client.completions.create(model="m", prompt=SUM)
                assert caught.value.code == "invalid_api_key" and transport.requests == 1
            with client_of(server, "right") as client:
                assert client.completions.create(model="m", prompt=SUM, max_tokens=1).choices

    def test_a_full_queue_is_asked_again_until_there_is_room(self):
        with Server("--max-sequences", 1, "--max-queue", 1, "--no-draft", "--context", 4096) as server:
            long = {"prompt": SUM, "max_tokens": 4000, "ignore_eos": True}
            running = server.stream("/v1/completions", long)
            next(running.events())
            queued = server.stream("/v1/completions", {**long, "max_tokens": 1})
            wait_until(lambda: server.metric("vllm:num_requests_waiting") == 1, 2, "one waits")
            transport = Counter()
            with client_of(server, http_client=httpx.Client(transport=transport), max_retries=0) as client:
                with pytest.raises(openai.RateLimitError) as caught:
                    client.completions.create(model="m", prompt=SUM)
                assert caught.value.type == "rate_limit_error" and caught.value.response.headers["Retry-After"] == "1"
            with client_of(server, http_client=httpx.Client(transport=transport), max_retries=3) as client, \
                    ThreadPoolExecutor() as pool:
                transport.requests = 0
                asked = pool.submit(client.completions.create, model="m", prompt=SUM, max_tokens=1)
                wait_until(lambda: transport.requests == 1, 2, "the first try")
                running.close()
                assert asked.result().usage.completion_tokens == 1
                assert transport.requests == 2
            queued.close()

    def test_a_loading_server_is_unavailable_and_then_answers(self, tmp_path):
        with Server("--no-draft", model=deep_qwen(tmp_path), ready=False) as server:
            with client_of(server, max_retries=0) as client:
                with pytest.raises(openai.InternalServerError) as caught:
                    client.completions.create(model="m", prompt=SUM)
                assert caught.value.status_code == 503 and caught.value.type == "unavailable_error"
            transport = Counter()
            with client_of(server, max_retries=8, http_client=httpx.Client(transport=transport)) as client:
                assert client.completions.create(model="m", prompt=SUM, max_tokens=1).usage.completion_tokens == 1

    def test_a_stream_that_is_cut_raises(self):
        with Server("--drain-timeout", "0.2", "--no-draft", "--context", 4096) as server, client_of(server) as client:
            stream = client.completions.create(model="m", prompt=SUM, max_tokens=4000, stream=True, extra_body={
                "ignore_eos": True})
            next(stream)
            server.process.terminate()
            with pytest.raises(openai.APIError) as caught:
                list(stream)
            assert caught.value.message
            assert server.wait(10) == 0


class TestConcurrency:
    def test_sixteen_at_once(self, either):
        sums = [(a, b) for a in (10, 25, 47, 58) for b in (11, 23, 39, 42)]
        alone = [whole.choices[0].message for whole in self.one_by_one(either, sums)]
        together = asyncio.run(self.at_once(either, sums))
        assert [(m.content, m.reasoning_content) for m in alone] == together

    def one_by_one(self, server, sums):
        with client_of(server) as client:
            return [client.chat.completions.create(model="m", messages=user(f"What is {a} + {b}?")) for a, b in sums]

    async def at_once(self, server, sums):
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            async def ask(a, b):
                content, thoughts = "", ""
                stream = await client.chat.completions.create(model="m", messages=user(f"What is {a} + {b}?"), stream=True)
                async for chunk in stream:
                    content += chunk.choices[0].delta.content or ""
                    thoughts += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
                return content, thoughts
            return await asyncio.gather(*(ask(a, b) for a, b in sums))

    def test_a_closed_stream_frees_its_row(self, either):
        with client_of(either) as client:
            stream = client.completions.create(model="m", prompt=SUM, max_tokens=3000, stream=True,
                                               extra_body={"ignore_eos": True})
            next(stream)
            assert either.metric("vllm:num_requests_running") == 1
            stream.close()
            either.wait_idle(1.0)

    def test_a_cancelled_task_frees_its_row(self, qwen):
        async def cancel():
            async with openai.AsyncOpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0) as client:
                task = asyncio.create_task(client.completions.create(model="m", prompt=SUM, max_tokens=3000,
                                                                     extra_body={"ignore_eos": True}))
                await asyncio.sleep(0.2)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        asyncio.run(cancel())
        qwen.wait_idle(1.0)

    def test_a_timeout_of_the_client_frees_its_row(self, qwen):
        with client_of(qwen, max_retries=0, timeout=0.2) as client:
            start = time.monotonic()
            with pytest.raises(openai.APITimeoutError):
                client.completions.create(model="m", prompt=SUM, max_tokens=4000, extra_body={"ignore_eos": True})
            assert time.monotonic() - start < 2
        qwen.wait_idle(1.0)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", *sys.argv[1:]]))

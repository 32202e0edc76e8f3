"""The cases of docs/cases.md that show from outside: conversations, sampling, scoring, hostile bodies, equal answers."""

import json
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import STORY, SUM, Server, message_of, text_of, user, whole_message
from test_contract import raw, refuse, request_bytes

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]}}}


def call(arguments, name="get_weather"):
    return {"id": "functions.get_weather:0", "type": "function", "function": {"name": name, "arguments": arguments}}


def history(**assistant):
    return [*user("weather in Oslo?"), {"role": "assistant", **assistant},
            {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "4 C"}]


class TestConversations:
    def test_c1_null_content_beside_calls_is_no_content(self, either):
        calls = [call('{"city":"Oslo"}')]
        contents = ({"content": None}, {"content": ""}, {})
        prompts = [either.tokenize(history(tool_calls=calls, **content)) for content in contents]
        assert prompts[0] == prompts[1] == prompts[2]
        text = either.decode(prompts[0])
        assert "None" not in text and "null" not in text
        assert "get_weather" in text and "Oslo" in text and "4 C" in text
        usage = either.chat(history(tool_calls=calls, content=None), max_tokens=2)["usage"]
        assert usage["prompt_tokens"] == len(prompts[0])

    def test_c2_arguments_of_a_call_without_any(self, either):
        prompts = [either.tokenize(history(tool_calls=[call(arguments)])) for arguments in (None, "", "{}", {})]
        assert all(prompt == prompts[0] for prompt in prompts)
        assert either.tokenize(history(tool_calls=[call({"city": "Oslo"})])) == either.tokenize(
            history(tool_calls=[call('{"city": "Oslo"}')]))

    @pytest.mark.parametrize("arguments", ["[1,2]", '{"a":1', 5, [1], "x"])
    def test_c2_arguments_that_are_no_object_are_400_by_their_path(self, either, arguments):
        error = refuse(either, "/v1/chat/completions", {"messages": history(tool_calls=[call(arguments)])})
        assert error["param"] == "messages[1].tool_calls[0].function.arguments", error

    def test_c3_developer_is_system(self, either):
        for role in ("developer", "system"):
            messages = [{"role": role, "content": "be brief"}, *user("hi")]
            assert either.tokenize(messages) == either.tokenize([{"role": "system", "content": "be brief"}, *user("hi")])
        assert either.chat([{"role": "developer", "content": "be brief"}, *user("hi")], max_tokens=2)

    def test_c3_leading_system_messages_are_merged(self, qwen):
        two = [{"role": "system", "content": "A"}, {"role": "developer", "content": "B"}, *user("hi")]
        assert qwen.tokenize(two) == qwen.tokenize([{"role": "system", "content": "A\n\nB"}, *user("hi")])

    def test_c3_a_late_system_message(self, qwen, kimi):
        late = [*user("hi"), {"role": "system", "content": "B"}, *user("go on")]
        error = refuse(qwen, "/v1/chat/completions", {"messages": late})
        assert "messages[1]" in error["param"] + error["message"]
        assert kimi.chat(late, max_tokens=1)["usage"]["prompt_tokens"] == len(kimi.tokenize(late))

    @pytest.mark.parametrize("off", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"},
                                     {"enable_thinking": False}])
    def test_c4_without_thinking_the_answer_is_content(self, either, off):
        assert either.tokenize(user(SUM), **off) != either.tokenize(user(SUM))
        message, _ = whole_message(either.chat(max_tokens=40, **off))
        assert message["content"] and not message["reasoning_content"]
        assert "think" not in message["content"]
        assert message_of(either.stream_chat(max_tokens=40, **off))[0] == message

    def test_c4_with_thinking_no_tag_is_in_either_field(self, either):
        for fields in ({}, {"chat_template_kwargs": {"enable_thinking": True}}):
            message, finish = whole_message(either.chat(STORY, **fields))
            assert finish == "stop" and message["content"] and message["reasoning_content"]
            text = message["content"] + message["reasoning_content"]
            assert not [tag for tag in ("think", "<|", "response") if tag in text]

    def test_c4_other_template_names_are_refused(self, either):
        refuse(either, "/v1/chat/completions", {"messages": user(SUM), "chat_template_kwargs": {"enableThinking": False}})
        assert either.chat(max_tokens=1, enableThinking=False)

    @pytest.mark.parametrize("model", ["qwen", "kimi"])
    def test_c5_both_ways_cut_thoughts_alike(self, request, model):
        server = request.getfixturevalue(model)
        fields = {"max_tokens": 5, "chat_template_kwargs": {"enable_thinking": True}}
        whole = server.chat(**fields)
        assert whole["choices"][0]["finish_reason"] == "length" and whole["usage"]["completion_tokens"] == 5
        assert whole["choices"][0]["message"]["reasoning_content"] and not whole["choices"][0]["message"]["content"]
        assert message_of(server.stream_chat(**fields)) == whole_message(whole)

    def test_c8_no_control_marks_in_content(self, kimi):
        for prompt in (SUM, STORY, "Who are you?", "weather in Oslo?"):
            message, _ = whole_message(kimi.chat(prompt))
            assert "<|" not in message["content"] and "<|" not in message["reasoning_content"]
            assert message_of(kimi.stream_chat(prompt))[0] == message

    def test_c10_parts_are_joined(self, either):
        parts = [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "45 + 27?"}]}]
        assert either.tokenize(parts) == either.tokenize(user(SUM))

    def test_c10_empty_and_foreign_parts(self, either):
        assert either.tokenize(user([])) == either.tokenize(user("")) == either.tokenize(user(None))
        for kind in ("image_url", "input_audio", "video_url"):
            error = refuse(either, "/v1/chat/completions", {"messages": user([{"type": kind, kind: {"url": "data:,"}}])})
            assert error["param"].startswith("messages[0].content[0]"), error

    def test_c10_an_empty_list_of_calls_is_none(self, either):
        turns = [*user("a"), {"role": "assistant", "content": "b", "tool_calls": []}, *user("c")]
        assert either.tokenize(turns) == either.tokenize([*user("a"), {"role": "assistant", "content": "b"}, *user("c")])

    def test_c10_no_user_turn_is_no_server_error(self, either):
        reply = either.post("/v1/chat/completions", {"messages": [
            {"role": "system", "content": "s"}, {"role": "assistant", "content": "", "tool_calls": [call("{}")]},
            {"role": "tool", "tool_call_id": "functions.get_weather:0", "content": "r"}], "max_tokens": 1})
        assert reply.status in (200, 400), reply

    def test_c10_two_turns_of_a_user_stay(self, either):
        text = either.decode(either.tokenize([*user("first turn"), *user("second turn")]))
        assert 0 < text.index("first turn") < text.index("second turn")

    def test_c12_both_names_of_thoughts_are_read(self, either):
        turns = [history(tool_calls=[call({})], **{name: "R1 thoughts"}) for name in ("reasoning_content", "reasoning")]
        assert either.tokenize(turns[0]) == either.tokenize(turns[1])
        assert "R1 thoughts" in either.decode(either.tokenize(turns[0]))


class TestTools:
    def test_tools_are_part_of_the_prompt(self, either):
        prompt = either.tokenize(user("weather in Oslo?"), tools=[TOOL])
        assert "get_weather" in either.decode(prompt)
        assert either.chat("weather in Oslo?", tools=[TOOL], max_tokens=1)["usage"]["prompt_tokens"] == len(prompt)

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
    def test_a_call_that_is_required_comes(self, either, choice):
        fields = {"tools": [TOOL], "tool_choice": choice, "reasoning_effort": "none", "max_tokens": 400}
        reply = either.post("/v1/chat/completions", {"messages": user("weather in Oslo?"), **fields})
        if reply.status == 400:
            assert reply.error()["param"] == "tool_choice"
            pytest.skip("refused, by its name")
        message, finish = whole_message(reply.json())
        if finish == "length":
            pytest.skip("the model does not come to an end")
        [made] = message["tool_calls"]
        assert finish == "tool_calls" and made["function"]["name"] == "get_weather" and made["type"] == "function"
        arguments = json.loads(made["function"]["arguments"])
        assert isinstance(arguments["city"], str) and set(arguments) <= {"city", "days"}
        assert message_of(either.stream_chat("weather in Oslo?", **fields)) == (message, finish)

    def test_no_call_where_none_may_be(self, either):
        message, finish = whole_message(either.chat(SUM, tools=[TOOL], tool_choice="none"))
        assert finish in ("stop", "length") and not message["tool_calls"]

    @pytest.mark.parametrize("fields", [{"tools": 5}, {"tools": [5]}, {"tools": [{"type": "function"}]},
                                        {"tools": [{"type": "function", "function": {"name": ""}}]},
                                        {"tools": [TOOL], "tool_choice": "sometimes"},
                                        {"tools": [TOOL],
                                         "tool_choice": {"type": "function", "function": {"name": "other"}}},
                                        {"tool_choice": "required"}])
    def test_wrong_tools_are_400_by_name(self, either, fields):
        error = refuse(either, "/v1/chat/completions", {"messages": user("a"), **fields})
        assert error["param"].startswith(("tools", "tool_choice")), error


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "left", "unit", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 20}, "left": {"type": "integer"},
    "unit": {"enum": ["marbles", "pencils"]}, "tags": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}}}}


class TestStructuredOutput:
    def answer(self, server, format, **fields):
        return server.chat(STORY, response_format=format, reasoning_effort="none", max_tokens=3000, **fields)

    @pytest.mark.parametrize("temperature", [0, 1])
    def test_a_schema_is_obeyed(self, either, temperature):
        format = {"type": "json_schema", "json_schema": {"name": "left", "schema": SCHEMA, "strict": True}}
        for seed in range(3):
            fields = {"temperature": temperature, "seed": seed}
            reply = self.answer(either, format, **fields)
            message, finish = whole_message(reply)
            found = json.loads(message["content"])
            assert finish == "stop" and set(found) == set(SCHEMA["required"]), message
            assert isinstance(found["name"], str) and len(found["name"]) <= 20
            assert isinstance(found["left"], int)
            assert found["unit"] in ("marbles", "pencils")
            assert len(found["tags"]) <= 2 and all(isinstance(tag, bool) for tag in found["tags"])
            streamed = either.stream_chat(STORY, response_format=format, reasoning_effort="none", max_tokens=3000, **fields)
            assert message_of(streamed) == (message, finish)

    def test_a_json_object_is_one(self, either):
        reply = self.answer(either, {"type": "json_object"})
        message, finish = whole_message(reply)
        if finish == "stop":
            assert isinstance(json.loads(message["content"]), dict)
        else:
            assert message["content"].lstrip().startswith("{"), message

    def test_thoughts_come_before_a_schemas_answer(self, either):
        format = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
        message, finish = whole_message(either.chat(SUM, response_format=format, max_tokens=500))
        assert finish == "stop" and json.loads(message["content"]) in ("yes", "no") and message["reasoning_content"]

    def test_text_is_no_constraint(self, either):
        assert either.chat(response_format={"type": "text"})["choices"] == either.chat()["choices"]

    @pytest.mark.parametrize("format", [
        5, {}, {"type": "yaml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}])
    def test_wrong_formats_are_400_by_name(self, either, format):
        error = refuse(either, "/v1/chat/completions", {"messages": user("a"), "response_format": format})
        assert error["param"].startswith("response_format"), error


class TestBudgets:
    @pytest.mark.parametrize("fields, tokens", [
        ({"max_tokens": 8}, 8), ({"max_completion_tokens": 8}, 8), ({"max_tokens": 8, "max_completion_tokens": 5}, 5),
        ({"max_tokens": None, "max_completion_tokens": 6}, 6), ({"max_tokens": 0}, 0)])
    def test_a4_budgets(self, either, fields, tokens):
        assert either.chat(ignore_eos=True, **fields)["usage"]["completion_tokens"] == tokens

    @pytest.mark.parametrize("fields", [{}, {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": None}])
    def test_a4_no_budget_is_the_servers(self, either, fields):
        assert either.complete(ignore_eos=True, **fields)["usage"]["completion_tokens"] == 512

    def test_a4_the_servers_budget_is_a_flag(self):
        with Server("--max-tokens", 9) as server:
            assert server.complete(ignore_eos=True)["usage"]["completion_tokens"] == 9
            assert server.complete(ignore_eos=True, max_tokens=11)["usage"]["completion_tokens"] == 11

    @pytest.mark.parametrize("value", [-1, "8", [8], -10**30, 1.5, False])
    def test_a4_wrong_budgets_are_400(self, either, value):
        for name in ("max_tokens", "max_completion_tokens"):
            refuse(either, "/v1/chat/completions", {"messages": user(SUM), name: value}, name)

    @pytest.mark.parametrize("value", [8.0, 10**12, 1e12, 10**30])
    def test_a4_odd_budgets_do_not_overflow(self, qwen, value):
        reply = qwen.post("/v1/chat/completions", {"messages": user(SUM), "max_tokens": value})
        assert reply.status in (200, 400), reply
        if reply.status == 200:
            assert reply.json()["usage"]["completion_tokens"] > 0


class TestSampling:
    @pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1, "top_k": 1}, {"temperature": 1e-9, "seed": 1},
                                        {"temperature": None, "top_p": None, "seed": None, "n": None, "stop": None}])
    def test_a6_greedy(self, either, fields):
        assert either.complete(STORY, max_tokens=60, **fields)["choices"] == either.complete(
            STORY, max_tokens=60)["choices"]

    @pytest.mark.parametrize("fields", [
        {"temperature": 2, "seed": 1}, {"temperature": 1, "top_p": 1, "seed": 1}, {"temperature": 1, "top_k": 0, "seed": 1},
        {"temperature": 1, "top_k": -1, "seed": 1}, {"temperature": 1, "top_k": 10**7, "seed": 1},
        {"temperature": 1, "min_p": 1, "seed": 1}, {"temperature": 1, "seed": 2**63 - 1}, {"temperature": 1, "seed": -1},
        {"repetition_penalty": 1.0}, {"presence_penalty": -2, "frequency_penalty": 2}, {"logit_bias": {}},
        {"best_of": 1}, {"suffix": None}, {"logit_bias": None}, {"unknown": {"a": [1]}}, {"user": "me"}])
    def test_a6_edges_that_are_right(self, either, fields):
        assert either.complete(max_tokens=8, ignore_eos=True, **fields)["usage"]["completion_tokens"] == 8

    def test_a6_values_that_turn_a_filter_off(self, qwen):
        plain = qwen.complete(STORY, max_tokens=60, temperature=1.3, seed=5)["choices"][0]["text"]
        for fields in ({"top_k": 0}, {"top_k": -1}, {"top_k": 10**7}, {"top_p": 1}, {"min_p": 0}):
            assert qwen.complete(STORY, max_tokens=60, temperature=1.3, seed=5, **fields)["choices"][0]["text"] == plain

    @pytest.mark.parametrize("name, value", [
        ("temperature", -1), ("temperature", -0.001), ("top_p", 1.0001), ("top_p", -0.5), ("min_p", 2), ("min_p", -1),
        ("presence_penalty", 3), ("frequency_penalty", -2.5), ("repetition_penalty", 0), ("repetition_penalty", -1),
        ("logit_bias", {"999999999": 5}), ("logit_bias", {"x": 1}), ("logit_bias", {"5": "x"}), ("logit_bias", {"5": 101}),
        ("logprobs", 21), ("logprobs", -1), ("best_of", 2), ("suffix", "end")])
    def test_a6_values_out_of_range_are_400_by_name(self, either, name, value):
        error = refuse(either, "/v1/completions", {"prompt": SUM, name: value})
        assert error["param"].startswith(name), error

    @pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e400"])
    def test_a6_no_numbers_are_400(self, qwen, value):
        for name in (b"temperature", b"top_p", b"presence_penalty"):
            refuse(qwen, "/v1/completions", b'{"prompt":"a","%s":%s}' % (name, value))

    def test_the_same_seed_gives_the_same_text_streamed_or_not(self, either):
        fields = {"max_tokens": 80, "temperature": 1.2, "top_p": 0.95, "ignore_eos": True}
        texts = [either.complete(SUM, seed=7, **fields)["choices"][0]["text"] for _ in range(3)]
        assert texts[0] == texts[1] == texts[2] == text_of(either.stream_complete(SUM, seed=7, **fields))
        assert len({either.complete(SUM, seed=seed, **fields)["choices"][0]["text"] for seed in range(5)}) > 1
        chat = either.chat(seed=7, **fields)
        assert message_of(either.stream_chat(seed=7, **fields)) == whole_message(chat)

    def test_without_a_seed_draws_differ(self, qwen):
        texts = {qwen.complete(SUM, max_tokens=60, temperature=2, ignore_eos=True)["choices"][0]["text"] for _ in range(4)}
        assert len(texts) > 1

    def test_a7_choices_are_numbered_and_have_their_own_seeds(self, either):
        fields = {"max_tokens": 40, "temperature": 1.5, "ignore_eos": True}
        reply = either.complete([SUM, STORY], n=3, seed=11, **fields)
        assert sorted(choice["index"] for choice in reply["choices"]) == list(range(6))
        texts = {choice["index"]: choice["text"] for choice in reply["choices"]}
        for prompt, text in enumerate((SUM, STORY)):
            for j in range(3):
                assert texts[3 * prompt + j] == either.complete(text, seed=11 + j, **fields)["choices"][0]["text"]
        assert reply["usage"]["completion_tokens"] == 240
        events = either.stream_chat(n=2, seed=11, **fields)
        chat = either.chat(n=2, seed=11, **fields)
        for index in range(2):
            [choice] = [choice for choice in chat["choices"] if choice["index"] == index]
            assert message_of(events, index) == whole_message({"choices": [choice]})

    def test_a_batch_cannot_be_streamed_but_one_prompt_can(self, qwen):
        refuse(qwen, "/v1/completions", {"prompt": [SUM, STORY], "stream": True})
        assert text_of(qwen.stream_complete([SUM], max_tokens=5)) == qwen.complete(SUM, max_tokens=5)["choices"][0]["text"]

    @pytest.mark.parametrize("prompt", [[], [[]], [1, "a"], ["a", 1], [["a"]], [[1], "a"], {}, 5, None, "", [""], [1.5],
                                        [True], [[1, [2]]], [None]])
    def test_prompts_of_no_known_form_are_400(self, qwen, prompt):
        error = refuse(qwen, "/v1/completions", {"prompt": prompt})
        assert error["param"].startswith("prompt"), error

    def test_prompt_forms_agree(self, either):
        ids = either.ask("/tokenize", {"prompt": SUM})["tokens"]
        texts = [either.complete(prompt, max_tokens=20)["choices"][0]["text"] for prompt in (SUM, ids, [SUM], [ids])]
        assert len(set(texts)) == 1
        batch = either.complete([STORY, "a"], max_tokens=5)["choices"]
        assert [choice["text"] for choice in sorted(batch, key=lambda choice: choice["index"])] == [
            either.complete(prompt, max_tokens=5)["choices"][0]["text"] for prompt in (STORY, "a")]

    def test_stops_are_searched_in_content_only(self, either):
        whole = whole_message(either.chat())[0]
        assert "45" in whole["reasoning_content"] and whole["content"].startswith("45 + 27")
        message, finish = whole_message(either.chat(stop=["+ 27"]))
        assert message["reasoning_content"] == whole["reasoning_content"]
        assert (message["content"], finish) == ("45 ", "stop")
        assert message_of(either.stream_chat(stop=["+ 27"])) == (message, finish)

    def test_the_echoed_prompt_is_not_searched_for_stops(self, qwen):
        reply = qwen.complete(SUM, stop=["What"], echo=True, max_tokens=3)
        assert reply["choices"][0]["text"].startswith(SUM)

    def test_the_earliest_stop_wins_and_empty_ones_are_none(self, qwen):
        full = qwen.complete(STORY, max_tokens=60, ignore_eos=True)["choices"][0]["text"]
        stops = ["", full[30:34], full[10:13], "never there"]
        cut = min(full.index(stop) for stop in stops[1:3])
        reply = qwen.complete(STORY, max_tokens=60, ignore_eos=True, stop=stops)
        assert reply["choices"][0]["text"] == full[:cut]


class TestEnds:
    """A2: finish_reason, usage and [DONE] of the three endings."""

    @pytest.mark.parametrize("fields, finish", [({}, "stop"), ({"stop": ["27 ="]}, "stop"), ({"max_tokens": 7}, "length")])
    def test_a2_streams_end_like_whole_replies(self, either, fields, finish):
        whole = either.chat(**fields)
        assert whole["choices"][0]["finish_reason"] == finish
        *events, last = either.stream_chat(stream_options={"include_usage": True}, **fields)
        finishes = [event["choices"][0]["finish_reason"] for event in events]
        assert finishes[-1] == finish and set(finishes[:-1]) == {None}
        assert last["choices"] == []
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert last["usage"][name] == whole["usage"][name]
        assert message_of(events) == whole_message(whole)

    def test_stream_options_without_a_stream_are_no_error(self, qwen):
        assert qwen.complete(max_tokens=1, stream_options={"include_usage": True})["usage"]
        assert qwen.stream_complete(max_tokens=1, stream_options=None)


class TestScoring:
    @pytest.mark.parametrize("as_ids", [False, True])
    def test_a3_prompts_are_scored(self, either, as_ids):
        text = "The sky is blue"
        ids = either.ask("/tokenize", {"prompt": text})["tokens"]
        for budget in (0, 1):
            reply = either.complete(ids if as_ids else text, echo=True, logprobs=1, max_tokens=budget)
            [choice] = reply["choices"]
            arrays = choice["logprobs"]
            assert set(arrays) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
            assert {len(values) for values in arrays.values()} == {len(ids) + budget}
            assert arrays["token_logprobs"][0] is None and arrays["top_logprobs"][0] is None
            assert all(isinstance(value, float) and value <= 0 for value in arrays["token_logprobs"][1:])
            assert all(value == top[token] and value <= max(top.values()) for token, value, top in zip(
                arrays["tokens"][1:], arrays["token_logprobs"][1:], arrays["top_logprobs"][1:]))
            assert arrays["text_offset"] == [len("".join(arrays["tokens"][:i])) for i in range(len(ids) + budget)]
            assert reply["usage"]["completion_tokens"] == budget
            assert choice["text"].endswith(text) if budget == 0 else text in choice["text"]

    def test_a3_two_prompts_of_unequal_length(self, qwen):
        reply = qwen.complete(["The sky", "a b c d e f"], echo=True, logprobs=1, max_tokens=0)
        for choice, text in zip(sorted(reply["choices"], key=lambda choice: choice["index"]), ("The sky", "a b c d e f")):
            assert choice["text"] == text and len(choice["logprobs"]["tokens"]) == len(qwen.encode(text))

    @pytest.mark.parametrize("logprobs", [1, 5, 20])
    def test_a12_alternatives_of_completions(self, either, logprobs):
        reply = either.complete(STORY, logprobs=logprobs, max_tokens=10, skip_special_tokens=False)
        arrays = reply["choices"][0]["logprobs"]
        assert len(arrays["tokens"]) == 10 and "".join(arrays["tokens"]) == reply["choices"][0]["text"]
        for token, value, top in zip(arrays["tokens"], arrays["token_logprobs"], arrays["top_logprobs"]):
            assert logprobs - 1 <= len(top) <= logprobs + 1
            assert top[token] == value == max(top.values())
            assert sum(math.exp(v) for v in top.values()) <= 1.0001

    def test_a12_the_chosen_token_is_always_there(self, qwen):
        fields = {"logprobs": 1, "max_tokens": 30, "temperature": 3, "seed": 4, "ignore_eos": True}
        arrays = qwen.complete(STORY, **fields)["choices"][0]["logprobs"]
        assert any(value < max(top.values()) for value, top in zip(arrays["token_logprobs"], arrays["top_logprobs"]))
        assert all(token in top for token, top in zip(arrays["tokens"], arrays["top_logprobs"]))

    @pytest.mark.parametrize("off", [None, False, 0])
    def test_logprobs_that_are_off(self, qwen, off):
        choice = qwen.complete(max_tokens=3, logprobs=off)["choices"][0]
        assert choice["logprobs"] is None

    @pytest.mark.parametrize("top", [0, 3, 20])
    def test_a12_logprobs_of_chat(self, either, top):
        reply = either.chat(logprobs=True, top_logprobs=top, max_tokens=12)
        content = reply["choices"][0]["logprobs"]["content"]
        assert len(content) == 12
        for entry in content:
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
            assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
            assert len(entry["top_logprobs"]) == top
            assert all(set(other) == {"token", "logprob", "bytes"} for other in entry["top_logprobs"])
            values = [other["logprob"] for other in entry["top_logprobs"]]
            assert values == sorted(values, reverse=True) and (not values or values[0] == entry["logprob"])
        events = either.stream_chat(logprobs=True, top_logprobs=top, max_tokens=12)
        streamed = [entry for event in events for choice in event["choices"]
                    for entry in (choice.get("logprobs") or {}).get("content") or []]
        assert streamed == content

    @pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 3},
                                        {"logprobs": False, "top_logprobs": 1}, {"logprobs": True, "top_logprobs": -1},
                                        {"logprobs": 5.5}])
    def test_a12_wrong_logprobs_of_chat_are_400(self, qwen, fields):
        refuse(qwen, "/v1/chat/completions", {"messages": user(SUM), **fields})

    def test_a12_a_draft_changes_no_value(self):
        values = []
        for flags in ((), ("--no-draft",)):
            with Server(*flags) as server:
                choice = server.complete(STORY, logprobs=2, max_tokens=60, echo=True)["choices"][0]
                values.append(choice["logprobs"]["token_logprobs"][1:])
        assert max(abs(a - b) for a, b in zip(*values)) < 1e-4
        assert len(values[0]) == len(values[1])


DEEP = b'{"prompt":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
HOSTILE = [b"", b"{", b"[]", b"null", b'{"messages":"hi"}', b'{"messages":[{"role":7}]}', b'{"prompt":{}}', DEEP,
           b'{"prompt":"a","metadata":' + b"[" * 10_000 + b"]" * 10_000 + b"}", b"[" * 1_000_000, b'{"a":' * 100_000,
           b'{"' + b"k" * 1_000_000 + b'":1}', b'{"prompt":"a","stream":"yes"}', b'\xef\xbb\xbf{}', b'{"prompt":"a\\ud83d"}',
           b'{"prompt":"\xff"}', b'{"prompt":"\xc3("}', b'{"prompt":"\\udc00\\ud800"}', b"\0" * 1000, b'{"prompt":"a",}',
           b'{"prompt":["a",]}', b'{"max_tokens":1e999}', b'{"messages":[{"role":"user","content":"\xed\xa0\xbd"}]}']


class TestHostile:
    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    @pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
    def test_a9_wrong_bodies_are_4xx_and_leave_the_server_alive(self, qwen, path, body):
        reply = qwen.post(path, body)
        assert 400 <= reply.status < 500, reply
        error = reply.error()
        assert error["type"] == "invalid_request_error" and len(reply.body) < 3000
        assert qwen.get("/health").status == 200

    def test_a9_a_body_with_a_key_twice_is_answered(self, qwen):
        assert qwen.post("/v1/completions", b'{"prompt":"a","prompt":"b","max_tokens":1}').status in (200, 400)

    def test_a9_a_thousand_wrong_requests_leave_memory_flat(self, qwen):
        bodies = [body for body in HOSTILE if len(body) < 100_000]
        for body in bodies * 2:
            qwen.post("/v1/completions", body)
        before, files = qwen.rss(), qwen.descriptors()
        for i in range(1000):
            assert qwen.post("/v1/completions", bodies[i % len(bodies)]).status < 500
        assert qwen.rss() < before + (4 << 20)
        assert qwen.descriptors() <= files + 2

    def test_a9_a_slow_body_holds_up_nobody(self, qwen):
        with qwen.socket() as slow:
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
            assert qwen.complete(max_tokens=1)["usage"]["completion_tokens"] == 1

    def test_a9_many_idle_connections_hold_up_nobody(self, qwen):
        sockets = [qwen.socket() for _ in range(300)]
        try:
            for sock in sockets[::3]:
                sock.sendall(b"GET /hea")
            assert qwen.complete(max_tokens=1)["usage"]["completion_tokens"] == 1
        finally:
            for sock in sockets:
                sock.close()

    def test_a_reader_that_takes_nothing_holds_up_nobody(self, qwen):
        sock = qwen.socket()
        sock.sendall(request_bytes("/v1/completions", {"prompt": SUM, "max_tokens": 3000, "ignore_eos": True, "stream": True,
                                                       "logprobs": 20}))
        try:
            assert qwen.complete(max_tokens=5)["usage"]["completion_tokens"] == 5
        finally:
            sock.close()
        qwen.wait_idle(10)

    @pytest.mark.parametrize("text", ["q" * 200_000, " " * 200_000, "国" * 100_000, "7" * 200_000, "a b" * 300_000])
    def test_t4_long_runs_are_answered_in_time(self, qwen, text):
        assert qwen.ask("/tokenize", {"prompt": text})["count"] > 4096
        refuse(qwen, "/v1/completions", {"prompt": text}, "prompt", code="context_length_exceeded")
        refuse(qwen, "/v1/chat/completions", {"messages": user(f"x{text}x")}, "messages", code="context_length_exceeded")

    @pytest.mark.parametrize("body", [b'{"prompt":"a\xffb"}', b'{"prompt":"\\ud83d"}', b'{"prompt":"\xf0\x9f\x98"}'])
    def test_t5_text_that_is_not_utf8_is_400(self, qwen, body):
        for path in ("/v1/completions", "/tokenize"):
            status_line, _, rest = raw(qwen, request_bytes(path, body)).partition(b"\r\n")
            assert b" 400 " in status_line
            assert b"\xff" not in rest and b"\xf0\x9f\x98" not in rest
        assert qwen.get("/health").status == 200

    def test_t5_ids_whose_bytes_are_no_text(self, qwen):
        half = qwen.encode("😀")[:2]
        reply = qwen.complete(half, max_tokens=2, echo=True, logprobs=1, ignore_eos=True)
        assert reply["choices"][0]["text"].startswith("\ufffd")
        assert qwen.decode(half) == "\ufffd"

    @pytest.mark.parametrize("name", [None, "", "tiny-qwen", "TINY-QWEN", "other/model", "models/tiny-qwen"])
    def test_a10_any_model_name_is_taken_and_the_served_one_comes_back(self, qwen, name):
        assert qwen.complete(max_tokens=1, model=name)["model"] == "tiny-qwen"
        assert qwen.chat(max_tokens=1, model=name)["model"] == "tiny-qwen"


class TestExtensions:
    """Fields that other servers have."""

    def test_token_ids_come_where_asked_for(self, either):
        reply = either.complete(SUM, max_tokens=12, return_token_ids=True)
        [choice] = reply["choices"]
        assert choice["prompt_token_ids"] == either.ask("/tokenize", {"prompt": SUM})["tokens"]
        assert len(choice["token_ids"]) == reply["usage"]["completion_tokens"]
        events = either.stream_complete(SUM, max_tokens=12, return_token_ids=True)
        streamed = [id for event in events for part in event["choices"] for id in part.get("token_ids") or []]
        assert streamed == choice["token_ids"]

    def test_the_reason_of_a_stop_is_told(self, qwen):
        full = qwen.complete(STORY, max_tokens=60, ignore_eos=True)["choices"][0]["text"]
        reply = qwen.complete(STORY, max_tokens=60, ignore_eos=True, stop=[full[20:24]])
        assert reply["choices"][0]["stop_reason"] == full[20:24]
        assert qwen.chat()["choices"][0]["stop_reason"] is None
        kept = qwen.complete(STORY, max_tokens=60, ignore_eos=True, stop=[full[20:24]], include_stop_str_in_output=True)
        assert kept["choices"][0]["text"] == full[:full.index(full[20:24]) + 4]

    def test_a_token_may_end_the_text(self, qwen):
        ids = qwen.complete(STORY, max_tokens=40, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"]
        reply = qwen.complete(STORY, max_tokens=40, ignore_eos=True, stop_token_ids=[ids[7]])
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["usage"]["completion_tokens"] == ids.index(ids[7]) + 1

    def test_the_least_tokens_are_met(self, either):
        plain = either.chat()["usage"]["completion_tokens"]
        reply = either.chat(min_tokens=plain + 20, max_tokens=plain + 60)
        assert plain + 20 < reply["usage"]["completion_tokens"] <= plain + 60

    @pytest.mark.parametrize("budget", [0, 6])
    def test_thoughts_have_a_budget(self, either, budget):
        reply = either.chat(STORY, thinking_token_budget=budget, max_tokens=200)
        assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] <= budget + 8
        message, _ = whole_message(reply)
        assert message["content"] and "think" not in message["content"] + message["reasoning_content"]
        assert message_of(either.stream_chat(STORY, thinking_token_budget=budget, max_tokens=200))[0] == message

    def test_penalties_and_biases_change_the_text(self, either):
        fields = {"max_tokens": 60, "temperature": 1.5, "seed": 2}
        plain = either.complete(STORY, **fields)["choices"][0]["text"]
        for changed in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 1.8}):
            assert either.complete(STORY, **changed, **fields)["choices"][0]["text"] != plain, changed
        [token] = either.encode("a")
        only = either.complete(STORY, logit_bias={str(token): 100}, max_tokens=5, ignore_eos=True)["choices"][0]["text"]
        assert only == "aaaaa"

    def test_a_streams_last_event_has_the_metrics(self, qwen):
        for metrics in (qwen.complete(max_tokens=30)["metrics"],
                        qwen.stream_complete(max_tokens=30, stream_options={"include_usage": True})[-1]["metrics"]):
            assert metrics["time_to_first_token_ms"] > 0 and metrics["tokens_per_second"] > 0
            found = metrics["speculative_decoding"]
            assert found["num_accepted_draft_tokens"] <= found["num_draft_tokens"] and found["num_spec_tokens"] == 7


class TestEqualAnswers:
    PROMPTS = [SUM, STORY, "Who are you?", "Tom has 6 boxes with 24 pencils in each and gives 50 pencils to Anna. "
               "How many pencils does Tom have left?"]
    WAYS = [{"temperature": 0}, {"temperature": 1, "seed": 3, "top_p": 0.95}, {"temperature": 0.8, "seed": 9, "top_k": 20}]

    def answers(self, server):
        return [server.complete(prompt, max_tokens=120, ignore_eos=True, **way)["choices"][0]["text"]
                for prompt in self.PROMPTS for way in self.WAYS]

    @pytest.mark.parametrize("model", ["tiny-qwen", "tiny-kimi"])
    def test_s2_a_draft_changes_no_text(self, model):
        with Server("--draft-width", 8, model=model) as server:
            drafted = self.answers(server)
            assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
        with Server("--no-draft", model=model) as server:
            assert self.answers(server) == drafted

    def test_a8_load_changes_no_text(self, either):
        asked = [(prompt, way) for prompt in self.PROMPTS for way in self.WAYS]
        alone = self.answers(either)
        with ThreadPoolExecutor(12) as pool:
            for _ in range(2):
                together = pool.map(lambda each: either.complete(each[0], max_tokens=120, ignore_eos=True, **each[1]), asked)
                assert [reply["choices"][0]["text"] for reply in together] == alone

    @pytest.mark.parametrize("model", ["tiny-qwen", "tiny-kimi"])
    def test_s8_a_prefix_cache_changes_no_text(self, model):
        turns = [*user(STORY)]
        replies = {}
        for size in ("0", "256MB"):
            with Server("--prefix-cache", size, "--prefix-chunk", 16, "--context", 4096, model=model) as server:
                messages, found = list(turns), []
                for question in ("And with 3 more?", "What is 45 + 27?", "Who are you?"):
                    reply = server.chat(messages, max_tokens=200)
                    found.append(whole_message(reply))
                    messages += [{"role": "assistant", "content": found[-1][0]["content"]}, *user(question)]
                    again = server.chat(messages[:-2], max_tokens=200)
                    assert whole_message(again) == found[-1]
                cached = again["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
                assert 0 < cached < again["usage"]["prompt_tokens"] if size != "0" else cached == 0
                hits = server.metric("vllm:prefix_cache_hits_total")
                assert hits >= cached if size != "0" else hits == 0
                replies[size] = found
        assert replies["0"] == replies["256MB"]

    def test_y6_the_effort_is_in_the_prompt(self, kimi):
        prompts = [kimi.tokenize(user(SUM), reasoning_effort=effort) for effort in ("low", "high", "max")]
        assert len({tuple(prompt) for prompt in prompts}) == 3
        assert kimi.tokenize(user(SUM)) == prompts[2]
        refuse(kimi, "/v1/chat/completions", {"messages": user(SUM), "reasoning_effort": "extreme"})
        assert kimi.complete(temperature=0, max_tokens=2)["usage"]["completion_tokens"] == 2

    def test_clients_at_once_get_their_own_answers(self, either):
        sums = [(a, a + 11) for a in range(10, 26)]
        alone = {pair: whole_message(either.chat("What is {} + {}?".format(*pair))) for pair in sums}
        found, lock = {}, threading.Lock()

        def ask(pair):
            answer = message_of(either.stream_chat("What is {} + {}?".format(*pair)))
            with lock:
                found[pair] = answer

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, sums))
        assert found == alone


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", *sys.argv[1:]]))

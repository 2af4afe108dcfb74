"""The emulator over HTTP: the API of vLLM as clients and Prometheus meet it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.emulator.emulator_builders import MODEL, Client, engine


async def test_a_completion_has_as_many_tokens_as_asked_for() -> None:
    async with engine() as client:
        status, answer = await client.post(prompt="one two three", max_tokens=5, ignore_eos=True)
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["text"].split()) == 5
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


async def test_a_chat_completion_answers_as_the_assistant() -> None:
    async with engine() as client:
        status, answer = await client.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": "hi there"}], max_completion_tokens=2
        )
    assert status == 200
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": " tok tok"}
    assert answer["usage"]["prompt_tokens"] == 6


async def test_a_chat_without_a_limit_ends_by_itself() -> None:
    async with engine() as client:
        _, answer = await client.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}])
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("tokens", [1, 2, 7])
async def test_a_stream_has_one_event_per_token_and_an_end(tokens: int) -> None:
    async with engine() as client:
        events = await client.stream(prompt=[1, 2, 3], max_tokens=tokens)
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert [choice["text"] for choice in choices] == [" tok"] * tokens
    assert [choice["finish_reason"] for choice in choices] == [None] * (tokens - 1) + ["length"]


async def test_a_chat_stream_names_the_role_first() -> None:
    async with engine() as client:
        events = await client.stream("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": " tok"}, {"content": " tok"}]


async def test_usage_comes_last_where_it_is_asked_for() -> None:
    async with engine() as client:
        events = await client.stream(prompt="a b", max_tokens=3, stream_options={"include_usage": True})
    assert json.loads(events[-2])["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert json.loads(events[-2])["choices"] == []


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": [5, 6, 7, 8]}, 4),
        ({"prompt": [[5, 6]]}, 2),
        ({"prompt": ["a b c"]}, 3),
        ({"prompt": ""}, 1),
        ({"prompt": "ignored", "holdfast_prompt_tokens": 900}, 900),
        ({"holdfast_prompt_tokens": 12}, 12),
    ],
)
async def test_prompt_tokens_are_counted_or_taken_as_stated(fields: dict[str, object], tokens: int) -> None:
    async with engine() as client:
        _, answer = await client.post(max_tokens=1, **fields)
        assert answer["usage"]["prompt_tokens"] == tokens
        assert await client.value("vllm:prompt_tokens_total") == tokens


async def test_a_header_sets_the_prompt_length() -> None:
    async with (
        engine() as client,
        client.session.post(
            client.base + "/v1/completions", data=b'{"max_tokens": 1}', headers={"Holdfast-Prompt-Tokens": "777"}
        ) as response,
    ):
        assert (await response.json())["usage"]["prompt_tokens"] == 777


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        (b"{", 400, "no JSON"),
        (b"[]", 400, "JSON object"),
        (b'{"prompt": 3}', 400, "prompt must be"),
        (b'{"prompt": []}', 400, "prompt must be"),
        (b'{"prompt": [1, "a"]}', 400, "prompt must be"),
        (b'{"prompt": ["a", "b"]}', 400, "prompt must be"),
        (b'{"prompt": [true]}', 400, "prompt must be"),
        (b'{"prompt": "a", "n": 2}', 400, "only n = 1"),
        (b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens must be a whole number of at least 1"),
        (b'{"prompt": "a", "max_tokens": "5"}', 400, "max_tokens must be"),
        (b'{"prompt": "a", "max_tokens": NaN}', 400, "max_tokens must be"),
        (b'{"prompt": "a", "max_tokens": 99999999}', 400, "leaves no room"),
        (b'{"holdfast_prompt_tokens": 32768}', 400, "maximum context length is 32768"),
        (b'{"holdfast_prompt_tokens": -1}', 400, "holdfast_prompt_tokens must be"),
        (b'{"prompt": "a", "model": "other"}', 404, "The model `other` does not exist."),
    ],
)
async def test_bad_requests_are_refused_the_way_vllm_does(body: bytes, status: int, complaint: str) -> None:
    async with (
        engine() as client,
        client.session.post(client.base + "/v1/completions", data=body) as response,
    ):
        error = (await response.json())["error"]
        assert response.status == status
        assert error["code"] == status
        assert complaint in error["message"]
        assert await client.value("vllm:request_success_total") == 0


async def test_health_version_and_models_answer() -> None:
    async with engine(served_names=("chat", "chat-8b")) as client:
        for path in ("/health", "/ping"):
            async with client.session.get(client.base + path) as response:
                assert response.status == 200
        async with client.session.get(client.base + "/version") as response:
            assert await response.json() == {"version": "0.32.0"}
        async with client.session.get(client.base + "/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["chat", "chat-8b"]
        status, _ = await client.post(model="chat-8b", prompt="a", max_tokens=1)
        assert status == 200
        assert await client.value("vllm:generation_tokens_total", model_name="chat") == 1


async def test_adapters_are_models_of_their_own_and_count_with_the_model() -> None:
    async with engine(served_names=("chat",), adapters=("sql",)) as client:
        async with client.session.get(client.base + "/v1/models") as response:
            models = {each["id"]: each["parent"] for each in (await response.json())["data"]}
        assert models == {"chat": None, "sql": "chat"}
        status, answer = await client.post(model="sql", prompt="a", max_tokens=1)
        assert (status, answer["model"]) == (200, "sql")
        assert (await client.post(model="other", prompt="a", max_tokens=1))[0] == 404
        assert await client.value("vllm:generation_tokens_total", model_name="chat") == 1


async def test_the_api_needs_a_key_where_one_is_set_and_the_rest_does_not() -> None:
    async with engine(api_keys=("secret", "other")) as client:
        for header, status in ((None, 401), ("Bearer wrong", 401), ("Bearer other", 200)):
            headers = {"Authorization": header} if header else {}
            async with client.session.get(client.base + "/v1/models", headers=headers) as response:
                assert response.status == status
        assert "vllm:num_requests_running" in await client.metrics()


async def test_every_finished_request_is_counted_once_in_every_histogram() -> None:
    async with engine() as client:
        await asyncio.gather(*(client.stream(prompt="a b c", max_tokens=4) for _ in range(5)))
        for name in (
            "time_to_first_token_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_inference_time_seconds",
            "request_time_per_output_token_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_params_max_tokens",
            "request_num_preemptions",
        ):
            assert await client.value(f"vllm:{name}_count") == 5
        assert await client.value("vllm:inter_token_latency_seconds_count") == 5 * 3
        assert await client.value("vllm:generation_tokens_total") == 20
        assert await client.value("vllm:request_success_total", finished_reason="length") == 5
        assert await client.value("vllm:num_requests_running") == 0
        assert await client.value("vllm:kv_cache_usage_perc") == 0


async def test_cached_tokens_are_counted_as_hits() -> None:
    async with engine() as client:
        await client.post(holdfast_prompt_tokens=640, holdfast_cached_tokens=512, max_tokens=1)
        assert await client.value("vllm:prefix_cache_hits_total") == 512
        assert await client.value("vllm:prompt_tokens_by_source_total", source="local_compute") == 128
        assert await client.value("vllm:request_prefill_kv_computed_tokens_sum") == 128


async def test_beyond_the_token_cap_requests_get_503_and_are_counted() -> None:
    async with engine(max_num_queued_tokens=100, speed=0.0005) as client:
        first = asyncio.create_task(client.post(holdfast_prompt_tokens=500, max_tokens=1))
        while not client.server.engine.scheduler.unfinished:
            await asyncio.sleep(0)
        body = {"holdfast_prompt_tokens": 1, "max_tokens": 1}
        async with client.session.post(client.base + "/v1/completions", json=body) as refused:
            error = (await refused.json())["error"]
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert (error["type"], error["code"]) == ("Service Unavailable", 503)
        assert await client.value("vllm:admission_rejections_total", reason="max_num_queued_tokens") == 1
        first.cancel()


async def test_a_client_that_goes_away_frees_its_place() -> None:
    async with engine(speed=0.01) as client:
        async with client.session.post(
            client.base + "/v1/completions", json={"prompt": "a", "max_tokens": 1000, "stream": True}
        ) as response:
            assert response.status == 200
            while await client.value("vllm:num_requests_running") != 1:
                await asyncio.sleep(0)
            response.close()
        await asyncio.wait_for(client.server.engine.idle(), 60)
        assert await client.value("vllm:num_requests_running") == 0
        assert client.server.engine.scheduler.kv_usage == 0


async def test_a_share_of_answers_ends_its_connection() -> None:
    async with engine(connection_close_share=0.25) as client:
        closing = []
        for _ in range(8):
            async with client.session.post(
                client.base + "/v1/completions", json={"prompt": "a", "max_tokens": 1}
            ) as got:
                closing.append(got.headers.get("Connection") == "close")
    assert closing == [False, False, False, True] * 2


async def test_a_draining_engine_finishes_its_streams_and_refuses_new_requests() -> None:
    async with engine(speed=1.0) as client:
        stream = asyncio.create_task(client.stream(prompt="a", max_tokens=30))
        while not client.server.engine.scheduler.running:
            await asyncio.sleep(0)
        draining = asyncio.create_task(client.server.drain(30))
        await asyncio.sleep(0)
        async with client.session.post(client.base + "/v1/completions", json={"prompt": "a"}) as refused:
            assert refused.status == 503
            assert (refused.headers["Connection"], refused.headers["Retry-After"]) == ("close", "1")
        assert len(await stream) == 31
        await asyncio.wait_for(draining, 60)


async def test_draining_gives_up_when_its_time_is_over() -> None:
    async with engine(speed=0.01) as client:
        stream = asyncio.create_task(client.stream(prompt="a", max_tokens=1000))
        while not client.server.engine.scheduler.running:
            await asyncio.sleep(0)
        await client.server.drain(0.05)
        assert client.server.engine.scheduler.unfinished == 1
        stream.cancel()


async def test_an_http_1_0_client_gets_a_plain_body() -> None:
    async with engine() as client:
        port = int(client.base.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"prompt": "a", "max_tokens": 2, "stream": true}'
        writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        text = await asyncio.wait_for(reader.read(), 60)
        writer.close()
    assert text.count(b"data: {") == 2
    assert text.endswith(b"data: [DONE]\n\n")


async def test_two_hundred_requests_at_once_are_all_answered() -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with engine(max_num_seqs=32, speed=1000.0) as client, aiohttp.ClientSession(connector=connector) as session:

        async def ask(index: int) -> int:
            body = {"model": MODEL, "holdfast_prompt_tokens": 1 + index, "max_tokens": 1 + index % 9, "stream": True}
            async with session.post(client.base + "/v1/completions", json=body) as response:
                return (await response.text()).count("data: {")

        assert await asyncio.gather(*map(ask, range(200))) == [1 + index % 9 for index in range(200)]
        assert await client.value("vllm:request_success_total") == 200
        assert await client.value("vllm:prompt_tokens_total") == sum(range(1, 201))


async def ready_status(client: Client) -> int:
    async with client.session.get(client.base + "/holdfast/ready") as response:
        return response.status


async def test_an_engine_that_listens_is_ready_until_it_drains() -> None:
    async with engine() as client:
        assert await ready_status(client) == 200
        await client.server.drain(0.0)
        assert await ready_status(client) == 503


async def test_once_the_drain_file_exists_answers_close_and_readiness_is_gone(tmp_path: Path) -> None:
    flag = tmp_path / "draining"
    flag.touch()
    async with engine(drain_file=str(flag)) as client:
        assert await ready_status(client) == 503
        async with client.session.post(client.base + "/v1/completions", json={"prompt": "a", "max_tokens": 1}) as got:
            assert got.status == 200
            assert got.headers["Connection"] == "close"


async def test_answers_name_the_replica_where_there_is_one() -> None:
    async with (
        engine(replica="chat-h100-0") as client,
        client.session.post(client.base + "/v1/completions", json={"prompt": "a", "max_tokens": 1}) as got,
    ):
        assert got.headers["X-Holdfast-Replica"] == "chat-h100-0"


async def test_work_is_counted_where_that_is_asked_for() -> None:
    counters = [f"vllm:estimated_{what}_per_gpu_total" for what in ("flops", "read_bytes", "write_bytes")]
    async with engine() as plain, engine(mfu_metrics=True) as counting:
        for client in (plain, counting):
            await client.post(holdfast_prompt_tokens=1000, max_tokens=11)
        assert [await plain.value(name) for name in counters] == [0.0, 0.0, 0.0]
        flops, read_bytes, written_bytes = [await counting.value(name) for name in counters]
    # Ten decodes, after a prompt that is one step: eleven times the weights, 2 FLOP for each of them and token.
    parameters, kv_bytes = 8.19e9, 2 * 36 * 8 * 128 * 2
    assert flops == pytest.approx(2 * parameters * 1010, rel=0.05)
    assert read_bytes == pytest.approx(11 * (2 * parameters + 1005 * kv_bytes), rel=0.01)
    assert written_bytes == pytest.approx(1010 * kv_bytes)

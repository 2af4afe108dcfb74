"""The port to the API server: what refusals say, and when nothing may be sent."""

import json

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client import ApiClient, Configuration

from holdfast.act.api import ApiError, ApiUnreachable, KubernetesApi, NotLeading, WhileLeading, _decoded, as_yaml
from tests.fakes import FakeApi


async def test_each_write_asks_whether_we_still_lead() -> None:
    api, leading = FakeApi(), [True, False]
    guarded = WhileLeading(api, lambda: leading.pop(0))
    await guarded.request("POST", "/things", body={"metadata": {"name": "a"}})
    with pytest.raises(NotLeading, match="POST /things"):
        await guarded.request("POST", "/things", body={"metadata": {"name": "b"}})
    assert list(api.objects) == ["/things/a"]


async def test_reading_asks_nobody() -> None:
    api = FakeApi()
    api.put_object("/things/a", {})
    assert await WhileLeading(api, lambda: False).request("GET", "/things/a")


async def test_an_outage_is_remembered_until_the_server_answers() -> None:
    status = [503, 403]

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"message": "so it is"}, status=status.pop(0) if status else 200)

    application = web.Application()
    application.router.add_get("/things", answer)
    async with TestServer(application) as server, ApiClient(Configuration(host=str(server.make_url("")))) as client:
        api = KubernetesApi(client)
        assert api.outage == ""
        with pytest.raises(ApiError):
            await api.request("GET", "/things")
        assert api.outage.endswith("answers GET /things with 503")
        with pytest.raises(ApiError):
            await api.request("GET", "/things")
        assert api.outage == "", "a refusal is an answer"
        await server.close()
        with pytest.raises(ApiUnreachable):
            await api.request("GET", "/things")
        assert "does not answer GET /things: Connect" in api.outage


def test_a_namespace_that_is_being_deleted_is_told_apart_from_other_refusals() -> None:
    ending = b'{"message": "forbidden", "details": {"causes": [{"reason": "NamespaceTerminating", "field": "x"}]}}'
    with pytest.raises(ApiError) as refused:
        _decoded(403, ending)
    assert refused.value.namespace_ends
    with pytest.raises(ApiError) as refused:
        _decoded(403, b'{"message": "forbidden: exceeded quota", "details": {}}')
    assert not refused.value.namespace_ends


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"<html>", b'{"details": null}'])
def test_an_answer_that_is_no_status_object_is_an_error_all_the_same(text: bytes) -> None:
    with pytest.raises(ApiError):
        _decoded(502, text)


@pytest.mark.parametrize(
    "text", ["\U0001f680", "a\u0085b", "\x7f", "\ufeff", "\u2028", "\U0010ffff", "\uffff", '"\\', "\x00\n\t"]
)
def test_every_character_reaches_an_api_server_that_reads_yaml(text: str) -> None:
    body = {"args": [f"--weird={text}"], text: {"message": text}}
    assert yaml.safe_load(as_yaml(body)) == body == json.loads(as_yaml(body))


def test_half_a_character_spoils_no_write() -> None:
    assert yaml.safe_load(as_yaml({"message": "a\ud83db"}).encode()) == {"message": "a\ufffdb"}


@given(st.recursive(st.text() | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner), max_leaves=5))
def test_what_is_sent_is_json_and_one_line(value: object) -> None:
    assert json.loads(as_yaml({"value": value})) == {"value": value}
    assert len(as_yaml({"value": value}).splitlines()) == 1

"""D16: what keeps weights away is named at the first crash, by the kind of failure and whatever library says it."""

from __future__ import annotations

import pytest

from holdfast.observe.objects import mapping
from holdfast.observe.objects.failure_words import explained, told
from tests.observe.engine_logs import DIRECT, POINTERS, prefixed, traceback

TRUST, AGAIN, OFFLINE = "SSL_CERT_FILE", "starts again by itself", "let pods reach the hub"
BUCKET, AWAY, TOKEN, OTHER = "credentials", "let pods reach the bucket", "model.tokenSecretRef", "model.uri"

# vllm-project/vllm#12311, run-ai/runai-model-streamer#46, kserve/kserve#4192, and their like in other libraries.
WORDS = {
    "huggingface_hub.errors.HfHubHTTPError: 503 Server Error: Service Unavailable for url: https://x": AGAIN,
    "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://x": AGAIN,
    "requests.exceptions.HTTPError: 502 Server Error: Bad Gateway for url: https://huggingface.co/api/models/x": AGAIN,
    "httpx.HTTPStatusError: Server error '504 Gateway Time-out' for url 'https://huggingface.co/x'": AGAIN,
    "urllib.error.HTTPError: HTTP Error 500: Internal Server Error": AGAIN,
    "aiohttp.client_exceptions.ClientResponseError: 503, message='Service Unavailable', url='https://x'": AGAIN,
    "RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status server error (503 Service "
    "Unavailable), domain: https://cas-server.xethub.hf.co": AGAIN,
    "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation: Slow": AGAIN,
    "botocore.exceptions.ClientError: An error occurred (503) when calling the HeadObject operation: x": AGAIN,
    "google.api_core.exceptions.ServiceUnavailable: 503 GET https://storage.googleapis.com/b/x": AGAIN,
    "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed": TRUST,
    "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded": TRUST,
    "httpx.ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired": TRUST,
    "botocore.exceptions.SSLError: SSL validation failed for https://minio.local/weights": TRUST,
    "RuntimeError: error sending request for url (https://x): invalid peer certificate: UnknownIssuer": TRUST,
    "urllib.error.URLError: <urlopen error [SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)>": TRUST,
    "ReadTimeoutError: HTTPSConnectionPool(host='cdn-lfs.huggingface.co', port=443): Read timed out.": OFFLINE,
    "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='x', port=443): timed out": OFFLINE,
    "httpx.ReadTimeout: The read operation timed out": OFFLINE,
    "httpcore.ConnectTimeout": OFFLINE,
    "aiohttp.client_exceptions.ServerTimeoutError: Timeout on reading data from socket": OFFLINE,
    "TimeoutError: [Errno 110] Connection timed out": OFFLINE,
    "urllib3.exceptions.ProxyError: ('Unable to connect to proxy', OSError('Tunnel failed: 407'))": OFFLINE,
    "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(9 bytes read)', 9)": OFFLINE,
    "httpx.RemoteProtocolError: peer closed connection without sending complete message body": OFFLINE,
    "http.client.RemoteDisconnected: Remote end closed connection without response": OFFLINE,
    "httpx.ConnectError: All connection attempts failed": OFFLINE,
    "socket.gaierror: [Errno -5] No address associated with hostname": OFFLINE,
    "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host huggingface.co:443 ssl:default": OFFLINE,
    "RuntimeError: error sending request for url (https://cas-server.xethub.hf.co): dns error": OFFLINE,
    "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: 'https://minio:9000/x'": AWAY,
    "botocore.exceptions.ConnectTimeoutError: Connect timeout on endpoint URL: 'https://s3.amazonaws.com/x'": AWAY,
    "azure.core.exceptions.ServiceRequestTimeoutError: HTTPSConnection": AWAY,
    "botocore.exceptions.NoCredentialsError: Unable to locate credentials": BUCKET,
    "botocore.exceptions.PartialCredentialsError: Partial credentials found in env, missing: secret": BUCKET,
    "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation: x": BUCKET,
    "botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: Forbidden": BUCKET,
    "botocore.exceptions.ClientError: An error occurred (InvalidAccessKeyId) when calling the ListObjectsV2": BUCKET,
    "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation": BUCKET,
    "botocore.exceptions.ClientError: An error occurred (SignatureDoesNotMatch) when calling the GetObject": BUCKET,
    "PermissionError: Access Denied": BUCKET,
    "Exception: Could not receive runai_response from libstreamer due to: b'S3 access denied'": BUCKET,
    "google.auth.exceptions.DefaultCredentialsError: Your default credentials were not found.": BUCKET,
    "google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/b/x": BUCKET,
    "azure.core.exceptions.ClientAuthenticationError: Server failed to authenticate the request.": BUCKET,
    "azure.identity._exceptions.CredentialUnavailableError: no token": BUCKET,
    "huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: https://hub.example.com/m": TOKEN,
    "httpx.HTTPStatusError: Client error '401 Unauthorized' for url 'https://huggingface.co/x'": TOKEN,
    "botocore.errorfactory.NoSuchBucket: An error occurred (NoSuchBucket) when calling the ListObjectsV2": OTHER,
    "botocore.exceptions.ClientError: An error occurred (404) when calling the HeadObject operation: Not Found": OTHER,
    "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error. (Request ID: x)": OTHER,
    "huggingface_hub.errors.EntryNotFoundError: 404 Client Error. Entry Not Found for url: https://x": OTHER,
}  # fmt: skip
REASONS = {
    TRUST: "HubUnreachable", AGAIN: "HubUnreachable", OFFLINE: "HubUnreachable", AWAY: "HubUnreachable",
    BUCKET: "ModelForbidden", TOKEN: "ModelForbidden", OTHER: "ModelNotFound",
}  # fmt: skip


@pytest.mark.parametrize(("words", "remedy"), WORDS.items(), ids=range(len(WORDS)))
def test_what_keeps_weights_away_is_named_with_its_remedy_at_the_first_crash(words: str, remedy: str) -> None:
    ended = {"exitCode": 1, "message": words, "startedAt": "2026-11-21T04:00:10Z", "finishedAt": "2026-11-21T04:00:40Z"}
    crashed = {"name": "vllm", "state": {"terminated": ended}, "restartCount": 0}
    pod = {"metadata": {"name": "chat-0"}, "status": {"containerStatuses": [crashed]}}
    replica = mapping.replica_from_pod(pod)
    assert replica.reason == REASONS[remedy]
    assert words in replica.detail
    assert remedy in replica.detail


@pytest.mark.parametrize(("words", "remedy"), WORDS.items(), ids=range(len(WORDS)))
def test_it_is_named_too_where_another_process_reports_it_or_another_exception_wraps_it(
    words: str, remedy: str
) -> None:
    raised = prefixed(traceback(words, "RuntimeError: the model cannot be loaded", link=DIRECT), "Worker_TP1", 7)
    found = told(f"{raised}\n{prefixed(traceback(POINTERS[0]), 'APIServer', 1)}")
    assert found is not None
    assert found[0] == REASONS[remedy]
    assert remedy in found[1]
    assert "root cause" not in found[1]


def test_the_first_of_exceptions_that_wrap_each_other_says_more_than_that_nothing_came() -> None:
    wrapped = ("requests.exceptions.SSLError: no", "huggingface_hub.errors.LocalEntryNotFoundError: An error happened")
    found = told(traceback(*wrapped, "OSError: We couldn't connect to 'https://huggingface.co' to load the files."))
    assert found is not None
    assert TRUST in found[1]


@pytest.mark.parametrize(
    "words",
    [
        "ValueError: 512 is not divisible by 3",
        "ValueError: 404 tokens",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "TimeoutError: RPC call to determine_available_memory timed out.",
        "PermissionError: [Errno 13] Permission denied: '/cache'",
        "RuntimeError: NCCL error: unhandled system error",
        "KeyError: 'quantization_config'",
        "CUDA error: device-side assert triggered",
    ],
)
def test_other_failures_are_not_blamed_on_weights(words: str) -> None:
    assert told(words) is None


@pytest.mark.parametrize("words", ["unexpected status code 503 Service Unavailable", "x509: unknown authority", "403"])
def test_an_image_that_cannot_be_pulled_is_no_matter_of_weights(words: str) -> None:
    assert explained("ImagePullBackOff", f'failed to pull image "a": {words}', {"name": "p"})[0] == "ImagePullBackOff"

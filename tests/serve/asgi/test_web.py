"""Other origins, paths that there are not, bodies without a type, HEAD, a path in front, TLS."""

import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine
from fake_server import Served

from serve.asgi.accepting import tls_context
from serve.asgi.graceful import bind
from serve.asgi.known_hosts import checks_hosts
from serve.options.http import Cors, HttpOptions, Tls
from serve.options.operations import Operations
from serve.options.serve_flags import parse_serve_flags

CHAT = "/v1/chat/completions"
ASKED = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}


def read(*argv: str) -> HttpOptions:
    return parse_serve_flags(["--demo", *argv])[0].http


def test_pages_of_other_origins_read_nothing_unless_allowed(fake: Served) -> None:
    answer = fake.http.get("/v1/models", headers=ASKED)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_an_allowed_origin_may_ask_before_its_key_and_read_errors(serve) -> None:
    cors = Cors(("https://app.example",), ("POST",), ("authorization",))
    operations = Operations(api_keys=("key",))
    http = serve(FakeEngine(), operations=operations, web=HttpOptions(cors)).http
    asked = http.options(CHAT, headers=ASKED | {"Access-Control-Request-Headers": "authorization"})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://app.example"
    assert asked.headers["access-control-allow-methods"] == "POST"
    refused = http.post(CHAT, headers=ASKED, json={})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    other = http.post(CHAT, headers={"Origin": "https://evil.example"}, json={})
    assert "access-control-allow-origin" not in other.headers


def test_cors_flags_are_vllms_json_lists() -> None:
    argv = ["--allowed-origins", '["https://a.org", "https://b.org"]', "--allow-credentials"]
    argv += ["--allowed-methods", '["GET"]', "--allowed-headers", '["x-a"]']
    assert read(*argv).cors == Cors(
        ("https://a.org", "https://b.org"), ("GET",), ("x-a",), allow_credentials=True
    )
    assert read("--allowed-origins", '["*"]').cors == Cors(("*",))
    assert read().cors is None


def test_a_404_names_the_path_and_a_405_the_methods_and_both_point_to_docs(fake: Served) -> None:
    for path, status, words in (
        ("/v2/models", 404, ("/v2/models", "/docs")),
        (CHAT, 405, (CHAT, "POST", "GET", "/docs")),
        ("/" + "x" * 9000, 404, ("/xxx", "/docs")),
    ):
        answer = fake.http.get(path)
        error = answer.json()["error"]
        assert answer.status_code == status and set(error) == {"message", "type", "param", "code"}
        message = error["message"]
        assert all(word in message for word in words) and len(message) < 400


def test_a_body_without_its_type_is_told_so(fake: Served) -> None:
    for sent in ("", "text/plain", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": sent} if sent else {}
        for path in ("/v1/completions", CHAT, "/generate", "/tokenize", "/abort_request"):
            answer = fake.http.post(path, content=b'{"prompt": "a"}', headers=headers)
            message = answer.json()["error"]["message"]
            assert answer.status_code == 415 and sent in message
            assert "Content-Type: application/json" in message


def test_head_is_get_without_the_body(fake: Served) -> None:
    for path in fake.http.get("/openapi.json").json()["paths"]:
        got, head = fake.http.get(path), fake.http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers.get("content-type") == got.headers.get("content-type")
    assert fake.http.head("/health").status_code == 200


def test_a_model_is_found_under_each_name_and_names_may_have_slashes(fake: Served) -> None:
    assert fake.openai.models.retrieve("alias").id == "alias"
    assert fake.http.get("/v1/models/fake").json() in fake.http.get("/v1/models").json()["data"]
    missing = fake.http.get("/v1/models/amd/Kimi-K2.5")
    assert missing.status_code == 404 and "fake, alias" in missing.json()["error"]["message"]


def test_behind_a_proxy_paths_are_right_whether_it_takes_its_own_off_or_not(serve) -> None:
    operations, keyed = Operations(api_keys=("key",)), {"Authorization": "Bearer key"}
    http = serve(FakeEngine(), operations=operations, web=HttpOptions(root_path="/llm")).http
    for prefix in ("", "/llm"):
        assert http.get(f"{prefix}/health").status_code == 200
        assert http.get(f"{prefix}/v1/models").status_code == 401
        assert http.get(f"{prefix}/v1/models", headers=keyed).status_code == 200
        assert "/llm/docs" in http.get(f"{prefix}/nothing", headers=keyed).text
        assert "/llm/openapi.json" in http.get(f"{prefix}/docs").text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A key and the certificate for this machine that it signs itself."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    files = Tls(folder / "certificate.pem", folder / "key.pem")
    command = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 1"
    command += f" -subj /CN=here -addext subjectAltName=IP:127.0.0.1 -out {files.certfile}"
    subprocess.run(
        [*command.split(), "-keyout", f"{files.keyfile}"], check=True, capture_output=True
    )
    return files


def test_https_is_served_and_a_handshake_that_never_comes_holds_nobody(
    serve, certificate: Tls
) -> None:
    server = serve(FakeEngine(), web=HttpOptions(tls=certificate))
    url = server.http.base_url
    with socket.create_connection((url.host, url.port)):
        body = {"prompt": "a", "max_tokens": 4, "stream": True}
        answer = server.http.post("/v1/completions", json=body)
        assert answer.text.endswith("data: [DONE]\n\n")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{url.host}:{url.port}/health", timeout=5)


def test_clients_certificates_are_demanded_when_they_are_required(serve, certificate: Tls) -> None:
    demanding = Tls(certificate.certfile, certificate.keyfile, certificate.certfile, 2)
    own = ssl.create_default_context(cafile=certificate.certfile)
    server = serve(FakeEngine(), web=HttpOptions(tls=demanding), wait_until_ready=False)
    url = f"{server.http.base_url}/version"
    with pytest.raises(httpx.HTTPError):
        httpx.get(url, verify=own)
    assert certificate.certfile is not None
    own.load_cert_chain(certificate.certfile, certificate.keyfile)
    assert httpx.get(url, verify=own).status_code == 200


def test_a_certificate_of_no_use_is_named(certificate: Tls, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing\.pem"):
        tls_context(tmp_path / "missing.pem", None, None, 0)
    assert certificate.certfile is not None and certificate.keyfile is not None
    with pytest.raises(OSError, match=r"certificate\.pem"):
        tls_context(certificate.certfile, tmp_path / "missing.pem", None, 0)
    with pytest.raises(OSError, match=r"key\.pem"):
        tls_context(certificate.certfile, certificate.keyfile, certificate.keyfile, 0)


KNOWN_HOSTS = ["127.0.0.1", "127.0.0.9:1", "[::1]:8000", "LOCALHOST:80", "localhost."]
KNOWN_HOSTS += ["[::ffff:127.0.0.1]", "localhost:"]
KNOWN_HOSTS += ["llm.example.org:443", "LLM.example.org", "a.b.inner.example"]
OTHER_HOSTS = ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "inner.example"]
OTHER_HOSTS += ["localhost.evil.example", "evilinner.example", "10.0.0.1", "2130706433"]
OTHER_HOSTS += ["[2001:db8::1]", "[::1].evil.example", "localhost:80:80", "[", ""]


def test_other_hosts_are_refused_where_hosts_are_checked(serve) -> None:
    web = HttpOptions(allowed_hosts=("llm.example.org", "*.inner.example"), checks_hosts=True)
    http = serve(FakeEngine(), web=web).http
    for path in ("/health", "/v1/models", CHAT, "/v1/messages", "/", "/nowhere"):
        for host in KNOWN_HOSTS:
            assert http.get(path, headers={"Host": host}).status_code != 403, host
        for host in OTHER_HOSTS:
            answer = http.get(path, headers={"Host": host, "Origin": "https://evil.example"})
            assert answer.status_code == 403, host
            assert "--allowed-hosts" in answer.json()["error"]["message"]


def test_hosts_are_checked_on_loopback_without_keys_and_where_some_are_named() -> None:
    with bind("127.0.0.1", 0) as loopback, bind("0.0.0.0", 0) as public:
        assert checks_hosts(loopback, (), ())
        assert not checks_hosts(loopback, ("key",), ())
        assert not checks_hosts(loopback, (), ("*",))
        assert not checks_hosts(public, (), ())
        assert checks_hosts(public, ("key",), ("llm.example.org",))
        assert checks_hosts(None, (), ("llm.example.org",)) and not checks_hosts(None, (), ())
    with bind("::ffff:127.0.0.1", 0) as mapped:
        assert checks_hosts(mapped, (), ())
    named = ("a.example", "*.b.example", "10.0.0.1")
    assert read("--allowed-hosts", *named).allowed_hosts == named

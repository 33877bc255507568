"""The server answers browsers on this machine that call it by its own name, and nobody else."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the packages of report pages are absent")
pytest.importorskip("plotly", reason="the packages of report pages are absent")

from fedstill.common.errors import FedstillError
from fedstill.results.watch.server import Server, serve
from fedstill.results.watch.watch import Watch


@pytest.fixture(scope="module")
def server(stopped_once: Path) -> Iterator[Server]:
    with serve(Watch(stopped_once), 0) as opened:
        threading.Thread(target=opened.serve_forever, daemon=True).start()
        yield opened
        opened.shutdown()


def ask(server: Server, path: str, host: str | None = None, verb: str = "GET") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(verb, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def test_it_listens_on_the_loopback_interface_only(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/"


def test_the_page_its_part_and_the_news(server: Server) -> None:
    status, headers, page = ask(server, "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert (headers["X-Frame-Options"], headers["Cache-Control"]) == ("DENY", "no-store")
    news = json.loads(ask(server, "/news")[2])
    assert f'data-stamp="{news["stamp"]}"' in page
    assert news["stamp"] in ask(server, "/part?again")[2]


def test_the_policy_lets_the_page_ask_its_own_server_and_nothing_else(server: Server) -> None:
    first, second = (ask(server, "/")[2] for _ in range(2))
    policies = [re.search(r'Content-Security-Policy" content="([^"]+)"', page) for page in (first, second)]
    parts = [dict(part.split(" ", 1) for part in found[1].split("; ")) for found in policies if found]
    assert {name: value for name, value in parts[0].items() if name != "script-src"} == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert re.fullmatch(r"'nonce-[0-9a-f]{24}'", parts[0]["script-src"])
    assert parts[0]["script-src"] != parts[1]["script-src"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}"]
)
@pytest.mark.parametrize("path", ["/", "/news", "/part"])
def test_another_name_is_refused_without_a_word_about_runs(server: Server, host: str, path: str) -> None:
    status, _, said = ask(server, path, host.format(port=server.server_port))
    assert (status, said) == (403, f"Open {server.address} instead.\n")


def test_localhost_is_the_same_machine(server: Server) -> None:
    assert ask(server, "/news", f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("path", ["/experiment.yaml", "/../log.jsonl", "/%2e%2e/log.jsonl", "//etc/passwd"])
def test_there_are_no_files_to_fetch(server: Server, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_nothing_can_be_sent(server: Server) -> None:
    assert ask(server, "/", verb="POST")[0] == 501


def test_what_cannot_be_read_now_is_no_end(stopped: Path) -> None:
    def nothing(path: Path) -> None:
        raise ValueError("half a file")

    with serve(Watch(stopped, find=nothing), 0) as server:  # type: ignore[arg-type]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert ask(server, "/news")[0] == 503
        server.watch.find = Watch(stopped).find
        assert ask(server, "/news")[0] == 200
        server.shutdown()


def test_a_port_in_use_is_said_and_without_one_the_next_is_taken(server: Server, stopped: Path) -> None:
    with pytest.raises(FedstillError, match=f"port {server.server_port} is in use: choose another one with --port"):
        serve(Watch(stopped), server.server_port)
    with serve(Watch(stopped), None) as first, serve(Watch(stopped), None) as second:
        assert 8765 <= first.server_port < second.server_port

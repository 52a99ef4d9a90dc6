"""`jaxspec serve`: what it says before it serves, and what it refuses; `tests/server` asks a server itself."""

import json
import socket

import pytest
import uvicorn

from jaxspec.cli.commands import serve


@pytest.fixture
def served(monkeypatch):
    """The applications that would have been served."""
    found = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: found.append(self.config.app))
    return found


def test_it_says_its_address_and_method(run, served):
    words = ("--port", 0, "--slots", 2, "--context", 100, "--length", 2, "--temperature", 0)
    status, out, err = run("serve", "--json", *words)
    said = json.loads(out)
    assert (status, len(served)) == (0, 1)
    assert said["url"].startswith("http://127.0.0.1:")
    assert (said["config"]["method"], said["config"]["context"], said["config"]["slots"]) == ("speculative", 100, 2)
    assert said["url"] in err


def test_what_it_refuses(run, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, out, err = run("serve", "--port", taken.getsockname()[1])
    assert (status, out) == (2, "")
    assert "can't listen at 127.0.0.1" in err
    monkeypatch.setattr(serve, "NEEDED", ("no_such_module",))
    status, _, err = run("serve")
    assert status == 2
    assert "pip install 'jaxspec[serve]'" in err

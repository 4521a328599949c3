"""Ports that wait for their server: free, different, and not those that Linux hands out."""

from __future__ import annotations

import random
import socket

import pytest

from harness import ports


@pytest.fixture
def handed_out(tmp_path, monkeypatch):
    """Sets the range of ports that Linux says it hands out."""
    path = tmp_path / "range"
    monkeypatch.setattr(ports, "HANDED_OUT", path)
    return lambda first, last: path.write_text(f"{first}\t{last}\n")


@pytest.mark.parametrize(("first", "last"), [(32768, 60999), (1024, 40000), (12000, 64000)])
def test_ports_are_free_and_all_different_and_none_is_handed_out_by_linux(handed_out, first, last):
    handed_out(first, last)
    with ports.held("127.0.0.1", 20) as found:
        assert len(set(found)) == 20
        assert not [port for port in found if first <= port <= last or port < ports.LOWEST]
        for port in found:
            with pytest.raises(OSError), socket.create_server(("127.0.0.1", port)):
                pass
    for port in found:
        socket.create_server(("127.0.0.1", port)).close()


def test_where_linux_hands_out_all_ports_or_says_nothing_any_free_port_is_taken(handed_out):
    for each in (handed_out, lambda *_: ports.HANDED_OUT.unlink()):
        each(1024, 65535)
        with ports.held("", 3) as found:
            assert len(set(found)) == 3


def test_ports_in_use_are_passed_over(handed_out):
    handed_out(ports.LOWEST + 1, ports.HIGHEST - 3)
    with ports.held("127.0.0.1", 3) as first, ports.held("127.0.0.1", 2) as second:
        assert set(first) == {65533, 65534, 65535}
        assert not set(first) & set(second)


def test_an_address_of_another_host_is_an_error():
    with pytest.raises(OSError), ports.held("192.0.2.1", 1):
        pass


def test_ranks_with_one_seed_are_given_different_ports(handed_out):
    handed_out(32768, 60999)
    found = []
    for _ in range(3):
        random.seed(1)
        with ports.held("127.0.0.1", 1) as each:
            found += each
    assert len(set(found)) > 1

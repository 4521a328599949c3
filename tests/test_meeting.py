"""The meeting of processes: threads stand for them, since it is all sockets."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from harness import meeting
from harness.contract import World
from harness.meeting import Meeting
from harness.worker.rank_agreement import agreement


def world(tmp_path, rank, processes=3):
    return World(
        rank=rank, local_rank=rank, processes=processes, devices=processes, platform="cpu", cores=1,
        rendezvous=f"file://{tmp_path}/rendezvous",
    )  # fmt: skip


def together(tmp_path, action):
    """`action(meeting, rank)` of three ranks at once; rank 0 comes last."""

    def rank(number):
        time.sleep(0.1 if number == 0 else 0)
        return action(Meeting(world(tmp_path, number)), number)

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(rank, range(3)))


def test_everybody_learns_what_each_brought(tmp_path):
    def action(meeting, rank):
        return meeting.exchange(f"port {rank}"), meeting.exchange(rank / 3), meeting.exchange()

    expected = (["port 0", "port 1", "port 2"], [0.0, 1 / 3, 2 / 3], [None, None, None])
    assert together(tmp_path, action) == [expected] * 3


def test_addresses_are_all_different_and_free(tmp_path):
    found = together(tmp_path, lambda meeting, rank: meeting.addresses(2 if rank == 0 else 1))
    assert found[0] == found[1] == found[2]
    assert [len(own) for own in found[0]] == [2, 1, 1]
    ports = {int(address.rpartition(":")[2]) for own in found[0] for address in own}
    assert len(ports) == 4
    for port in ports:
        socket.create_server(("", port)).close()


@pytest.mark.parametrize("late", [0, 1, 2])
def test_nobody_leaves_before_the_last_has_come(tmp_path, late):
    come = threading.Event()

    def action(meeting, rank):
        meeting.exchange()
        if rank == late:
            time.sleep(0.2)
            come.set()
        meeting.exchange()
        return come.is_set()

    assert together(tmp_path, action) == [True] * 3


def test_a_rank_that_has_ended_is_an_error_not_a_wait(tmp_path):
    def action(meeting, rank):
        meeting.exchange()
        if rank == 2:
            for connection in (*meeting.lines, *meeting.peers):
                connection.close()
            return "left"
        with pytest.raises(ConnectionError) as error:
            meeting.exchange()
            meeting.exchange()
        assert type(error.value) is ConnectionError and error.value.__cause__  # however it showed
        for connection in (*meeting.lines, *meeting.peers):
            connection.close()
        return "told"

    assert together(tmp_path, action) == ["told", "told", "left"]


def test_a_rank_that_never_comes_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(meeting, "WAIT_SECONDS", 0.1)
    for rank in (0, 1):
        with pytest.raises(TimeoutError):
            Meeting(world(tmp_path / str(rank) if rank else tmp_path, rank))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def over_hosts(rank, port):
    return World(
        rank=rank, local_rank=0, processes=3, devices=3, platform="cpu", cores=1, host=rank, hosts=3,
        rendezvous=f"tcp://127.0.0.1:{port}", address=f"127.0.0.{rank + 1}",
    )  # fmt: skip


def test_ranks_of_several_hosts_agree_without_files(tmp_path):
    port = free_port()

    def rank(number):
        world = over_hosts(number, port)
        agree = agreement(world, tmp_path / "nowhere", lambda: None, at=world.rendezvous)
        arrays = {"w": np.full(3, number / 3), "steps": np.array(number)}
        return agree.on("x", number + 0.1), agree.arrays("a", arrays), agree.gather("g", number)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(rank, range(3)))
    assert [of for of, _, _ in found] == [0.1] * 3
    for _, arrays, _ in found:
        assert arrays.keys() == {"w", "steps"} and not arrays["w"].any() and arrays["steps"] == 0
    assert [gathered for _, _, gathered in found] == [[0, 1, 2], None, None]


def test_servers_have_the_addresses_of_their_hosts():
    port = free_port()
    with ThreadPoolExecutor(3) as pool:
        (found, *_) = pool.map(lambda number: Meeting(over_hosts(number, port)).addresses(), range(3))
    assert [address.partition(":")[0] for (address,) in found] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]

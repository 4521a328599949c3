"""Signals: held off while something must not be half done, and a second one kills."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.launch.interrupts import SIGNALS, install_signal_handlers, raise_if_lost, signals_held
from harness.launch.launcher import Launch, launch
from harness.spec.errors import Interrupted


@pytest.fixture(autouse=True)
def handlers():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may themselves run under nohup
    restore = install_signal_handlers()
    yield
    restore()
    signal.signal(signal.SIGHUP, before)


def test_a_signal_waits_for_what_must_be_whole_though_other_threads_could_take_it():
    done, ends = [], threading.Event()
    thread = threading.Thread(target=ends.wait, args=(20,))  # as of a live display, or of parity phases side by side
    thread.start()
    try:
        with pytest.raises(Interrupted) as interruption, signals_held():
            os.kill(os.getpid(), signal.SIGTERM)
            done.extend(range(10_000))
            assert not ends.wait(0.05)
            done.append("whole")
    finally:
        ends.set()
        thread.join()
    assert done[-1:] == ["whole"]
    assert interruption.value.number == signal.SIGTERM
    assert all(signal.getsignal(number) == signal.SIG_DFL for number in SIGNALS)  # a second one kills


def test_a_second_sighup_does_not_kill():
    """A closed terminal sends one, and the shell in it another."""
    with pytest.raises(Interrupted) as interruption:
        os.kill(os.getpid(), signal.SIGHUP)
    assert interruption.value.number == signal.SIGHUP
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_the_first_signal_says_at_once_what_it_does(capfd):
    restore = install_signal_handlers("ending RUN")
    try:
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err == "SIGINT: ending RUN\n"
    finally:
        restore()


class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGHUP)


class Endless:
    """A phase that never ends by itself."""

    stopped = False

    def poll(self) -> bool:
        return False

    def progress(self) -> None:
        return None

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(60)
def test_a_signal_that_comes_in_a_finalizer_ends_a_launch_all_the_same():
    """Python swallows what is raised there."""
    raise_if_lost()
    del [Finalized()][0]
    running: Any = Endless()
    launcher: Any = SimpleNamespace(start=lambda launch: running, links=())
    with pytest.raises(Interrupted) as interruption:
        launch(cast(Launch, None), launcher)
    assert interruption.value.number == signal.SIGHUP and running.stopped


def test_without_a_signal_all_is_as_before():
    before = [signal.getsignal(number) for number in SIGNALS]
    with signals_held():
        pass
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_an_ignored_signal_stays_ignored(number):
    """SIGHUP under nohup, and SIGINT in a background job of a shell script."""
    before = signal.signal(number, signal.SIG_IGN)
    restore = install_signal_handlers()
    try:
        os.kill(os.getpid(), number)
        with signals_held():
            os.kill(os.getpid(), number)
    finally:
        restore()
        assert signal.signal(number, before) == signal.SIG_IGN

"""What streams are asked to do beside a kernel, and in which order: with a driver that notes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton_ext.distributed import streams  # noqa: E402
from triton_ext.distributed.workspace import (  # noqa: E402
    Count,
    Parcel,
    SymmetricWorkspace,
)

STREAM = SimpleNamespace(cuda_stream=7)


@pytest.fixture
def driver(monkeypatch):
    """The calls of the driver, which return `driver.code`."""
    made = SimpleNamespace(calls=[], code=0)

    def function(name, *_types):
        def call(*arguments):
            made.calls.append((name, *arguments))
            return made.code

        return call

    monkeypatch.setattr(streams, "_function", function)
    return made


def test_what_the_driver_is_asked_for(driver):
    words, source, target = torch.zeros(9, dtype=torch.int32), *torch.zeros(2, 8, 4).bfloat16()
    streams.wait(STREAM, words, 3, 5)
    streams.write(STREAM, words, 8, 6)
    streams.copy(STREAM, target[2:], source[2:])
    assert driver.calls == [
        ("cuStreamWaitValue32_v2", 7, words.data_ptr() + 12, 5, streams.GREATER_OR_EQUAL),
        ("cuStreamWriteValue32_v2", 7, words.data_ptr() + 32, 6, 0),
        ("cuMemcpyDtoDAsync_v2", target.data_ptr() + 16, source.data_ptr() + 16, 48, 7),
    ]


def test_an_error_of_the_driver_is_named(driver):
    driver.code = 1
    with pytest.raises(RuntimeError, match="cuStreamWaitValue32_v2: the CUDA driver returns error"):
        streams.wait(STREAM, torch.zeros(1, dtype=torch.int32), 0, 1)


@pytest.mark.parametrize("capturing", [False, True])
@pytest.mark.parametrize("made", [False, True])
def test_nothing_waits_in_front_of_the_kernel_that_it_waits_for(monkeypatch, made, capturing):
    """A stream's wait may hold up what other streams were given later."""
    order = []
    for name in ("wait", "write", "copy"):
        monkeypatch.setattr(streams, name, lambda *_, name=name: order.append(name))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    space = object.__new__(SymmetricWorkspace)
    space._begun, space._copied = "begun", "copied"
    for name in ("stream", "copies"):
        stream = SimpleNamespace(
            record_event=lambda event, name=name: order.append(f"{name} records {event}"),
            wait_event=lambda event, name=name: order.append(f"{name} waits for {event}"),
        )
        setattr(space, f"_{name}", stream)
    words, data = torch.zeros(9, dtype=torch.int32), torch.zeros(4)
    parcel = Parcel(((data, data),), words, 1, Count(words, 2, 3) if made else None)
    space.send([parcel, parcel], lambda: order.append("kernel"))
    fork = ["stream records begun", "copies waits for begun"]
    join = ["copies records copied", "stream waits for copied"]
    if made:
        asked = ["kernel", *2 * ["wait", "write", "copy", "write"]]
        assert order == ([*fork, *asked, *join] if capturing else asked)
    else:
        assert order == [*fork, *2 * ["copy", "write"], "kernel", *join]


def test_a_kernel_alone_needs_no_events():
    order = []
    space = object.__new__(SymmetricWorkspace)
    space._stream = space._copies = STREAM
    space.send([], lambda: order.append("kernel"))
    assert order == ["kernel"]

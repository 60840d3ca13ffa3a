"""Which launches share a workspace: streams and captures of an imagined GPU."""

import ctypes

import pytest
import torch

from triton_ext.ops import workspaces


class Driver:
    """CUDA's driver as far as captures go: which stream is part of which."""

    def __init__(self):
        self.captures = {}
        self.fails = False

    def capture_info(self, stream, status, number, *others):
        assert others == (None,) * 3
        found = self.captures.get(stream)
        ctypes.c_int.from_address(status).value = 0 if found is None else 1
        ctypes.c_uint64.from_address(number).value = found or 0
        return 900 if self.fails else 0


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    asked = {"cuStreamGetCaptureInfo_v2": made.capture_info}
    monkeypatch.setattr(workspaces, "driver_function", lambda name, *types: asked[name])
    monkeypatch.setattr(workspaces, "_zeros", lambda size, index: torch.zeros(size).char())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(made.captures))
    monkeypatch.setattr(workspaces, "_of_streams", {})
    monkeypatch.setattr(workspaces, "_of_captures", {})
    return made


def test_launches_of_a_stream_share_one(driver):
    first = workspaces.workspace(64, 0, 7)
    assert workspaces.workspace(32, 0, 7) is first
    assert workspaces.workspace(64, 0, 8) is not first
    assert workspaces.workspace(64, 1, 7) is not first
    larger = workspaces.workspace(65, 0, 7)
    assert larger.numel() == 65
    assert workspaces.workspace(64, 0, 7) is larger


def test_a_capture_has_one_for_each_stream_and_leaves_it_to_no_other(driver):
    eager = workspaces.workspace(64, 0, 7)
    driver.captures = {7: 100, 8: 100}
    first = workspaces.workspace(64, 0, 7)
    assert first is not eager
    assert workspaces.workspace(64, 0, 7) is first
    fork = workspaces.workspace(64, 0, 8)
    assert fork is not first
    assert workspaces.workspace(64, 0, 7) is first
    driver.captures = {7: 101}
    second = workspaces.workspace(64, 0, 7)
    assert second is not first
    driver.captures = {}
    assert workspaces.workspace(64, 0, 7) is eager


def test_without_the_drivers_word_each_launch_has_its_own(driver):
    driver.captures, driver.fails = {7: 100}, True
    assert workspaces.workspace(64, 0, 7) is not workspaces.workspace(64, 0, 7)

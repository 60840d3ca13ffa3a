"""What a captured launch follows, by an imagined driver; test_ops_gpu.py asks a real one."""

import types

import pytest

from triton_ext import capture

OURS, ANOTHER = 0x1000, 0x2000


def driver_of(capturing, nodes):
    """A driver whose capture of any stream ends in kernel `nodes`: each its function, or None for
    one that is no kernel."""
    array = (capture.ctypes.c_void_p * max(1, len(nodes)))(*range(1, len(nodes) + 1))

    def capture_info(stream, status, number, graph, found, edges, count):
        status._obj.value, count._obj.value = int(capturing), len(nodes)
        found._obj.contents = array
        return 0

    def kernel_node(node, parameters):
        function = nodes[node.value - 1]
        if function is None:
            return 1
        parameters._obj.function = function
        return 0

    return types.SimpleNamespace(
        cuStreamGetCaptureInfo_v3=capture_info, cuGraphKernelNodeGetParams_v2=kernel_node
    )


@pytest.mark.parametrize(
    ("capturing", "nodes", "expected"),
    [
        (False, [], True),
        (True, [OURS], True),
        (True, [ANOTHER], False),
        (True, [None], False),
        (True, [], False),
        (True, [OURS, OURS], False),
    ],
)
def test_a_captured_launch_begins_early_after_one_of_ours_alone(
    monkeypatch, capturing, nodes, expected
):
    monkeypatch.setattr(capture, "_driver", lambda: driver_of(capturing, nodes))
    assert capture.follows(77, {OURS}) is expected


def test_an_old_driver_does_not_say(monkeypatch):
    monkeypatch.setattr(capture, "_driver", lambda: None)
    assert capture.follows(77, {OURS})

"""What functions of tvm-ffi see of torch's tensors on the emulated GPU: DLPack's C functions."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton_ext.emulator.host.tvm_ffi import on_device  # noqa: E402

CPU, CUDA = 1, 2  # kDLCPU, kDLCUDA


class Tensor(ctypes.Structure):
    """``DLTensor`` of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32),
        ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    )  # fmt: skip


class Managed(ctypes.Structure):
    """``DLManagedTensorVersioned`` of dlpack.h."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    )  # fmt: skip


def table():
    """DLPack's exchange API: the version, the earlier one, and five functions."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    at = pointer(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    return (ctypes.c_void_p * 7).from_address(at)


def functions():
    """From and to an object of Python, a look at one, and the current stream."""
    _, _, _, *addresses = table()
    two = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.c_void_p)
    return *map(two, addresses[:3]), stream(addresses[3])


def test_tensors_go_to_the_device_and_come_back():
    x = torch.arange(6.0).reshape(2, 3)
    before = list(table())
    with on_device():
        read, back, look, stream = functions()
        out, view, at = ctypes.POINTER(Managed)(), Tensor(), ctypes.c_void_p(1)
        assert read(id(x), ctypes.addressof(out)) == 0
        assert look(id(x), ctypes.addressof(view)) == 0
        assert stream(CUDA, 0, ctypes.addressof(at)) == 0
        assert at.value is None
        for tensor in (out.contents.tensor, view):
            assert (tensor.device, tensor.number, tensor.data) == (CUDA, 0, x.data_ptr())
            assert (tensor.rank, tensor.shape[0], tensor.shape[1]) == (2, 2, 3)
        made = ctypes.c_void_p()
        assert back(ctypes.cast(out, ctypes.c_void_p).value, ctypes.addressof(made)) == 0
        again = ctypes.cast(made, ctypes.py_object).value
        assert again.device.type == "cpu"
        assert again.data_ptr() == x.data_ptr()
        assert again.equal(x)
    read, _, look, _ = functions()
    assert look(id(x), ctypes.addressof(view)) == 0
    assert view.device == CPU
    assert list(table()) == before

"""CUDA's driver, called by ctypes."""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
word = ctypes.c_uint64


def call(name, *arguments, expected=0):
    status = getattr(cuda, name)(*arguments)
    assert status == expected, (name, status)


def made(name, *arguments):
    """What a function gives by its first parameter."""
    result = word()
    call(name, ctypes.byref(result), *arguments)
    return result.value


def start(ptx):
    """The kernel of saxpy.ptx: out += a * scale * in, of n numbers."""
    call("cuInit", 0)
    call("cuCtxSetCurrent", ctypes.c_void_p(made("cuDevicePrimaryCtxRetain", 0)))
    with open(ptx, "rb") as file:
        module = made("cuModuleLoadData", file.read())
    return made("cuModuleGetFunction", word(module), b"saxpy")


def parameters(out, values, a, n):
    """Pointers to the kernel's parameters, and what they point to."""
    kept = word(out), word(values), ctypes.c_float(a), ctypes.c_int(n)
    return (ctypes.c_void_p * 4)(*(ctypes.addressof(each) for each in kept)), kept


def numbers(address, count):
    found = (ctypes.c_float * count)()
    call("cuMemcpyDtoH_v2", found, word(address), word(4 * count))
    return list(found)

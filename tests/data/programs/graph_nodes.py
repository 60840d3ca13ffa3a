"""Builds a graph node by node, launches it, and changes what was made of it."""

import ctypes
import struct
import sys

from cuda_calls import call, made, numbers, parameters, start, word

function = start(sys.argv[1])
out, values, copied = (made("cuMemAlloc_v2", word(400)) for _ in range(3))


def kernel(a):
    """CUDA_KERNEL_NODE_PARAMS_v2, and what it points to."""
    pointers, kept = parameters(out, values, a, 100)
    place = ctypes.addressof(pointers)
    return struct.pack("<Q7I4xQ24x", function, 1, 1, 1, 128, 1, 1, 0, place), (pointers, kept)


def filling(address, number):
    """CUDA_MEMSET_NODE_PARAMS: 100 words."""
    return struct.pack("<QQIIQQ", address, 0, number, 4, 100, 1)


def node(graph, name, *rest):
    return made(name, word(graph), None, word(0), *rest)


def launched(executable):
    call("cuGraphLaunch", word(executable), None)
    return numbers(out, 100)[99], numbers(copied, 100)[99]


ONE, TWO = 0x3F800000, 0x40000000
inner = made("cuGraphCreate", 0)
given, kept = kernel(3)
inner_kernel = node(inner, "cuGraphAddKernelNode_v2", given)
graph = made("cuGraphCreate", 0)
fill = node(graph, "cuGraphAddMemsetNode", filling(values, ONE), None)
clear = node(graph, "cuGraphAddMemsetNode", filling(out, 0), None)
child = node(graph, "cuGraphAddChildGraphNode", word(inner))
empty = node(graph, "cuGraphAddEmptyNode")
union = struct.pack("<4i232sq", 0, 0, 0, 0, given, 0)  # CUgraphNodeParams: a kernel
again = made("cuGraphAddNode_v2", word(graph), None, None, word(0), union)
copy = bytearray(200)  # CUDA_MEMCPY3D: 400 bytes within the device
struct.pack_into("<I4xQQ", copy, 32, 2, 0, out)
struct.pack_into("<I4xQQ", copy, 120, 2, 0, copied)
struct.pack_into("<3Q", copy, 176, 400, 1, 1)
copy_node = node(graph, "cuGraphAddMemcpyNode", bytes(copy), None)

kinds = []
for each in (again, copy_node, fill, child, empty):
    kind = ctypes.c_int()
    call("cuGraphNodeGetType", word(each), ctypes.byref(kind))
    kinds.append(kind.value)
print(*kinds)

executable = made("cuGraphInstantiateWithFlags", word(graph), word(0))
print(*launched(executable))
call("cuGraphExecMemsetNodeSetParams", word(executable), word(fill), filling(values, TWO), None)
print(*launched(executable))
given, more = kernel(4)
call("cuGraphExecKernelNodeSetParams_v2", word(executable), word(again), given)
print(*launched(executable))
call("cuGraphExecKernelNodeSetParams_v2", word(executable), word(fill), given, expected=1)
other = made("cuGraphCreate", 0)
result = (ctypes.c_uint64 * 3)()
call("cuGraphExecUpdate_v2", word(executable), word(other), result, expected=910)
print(result[0] & 0xFFFFFFFF)
call("cuGraphExecUpdate_v2", word(executable), word(graph), result)
for each in (graph, inner, other):  # what was made of it lives on
    call("cuGraphDestroy", word(each))
print(*launched(executable))
call("cuGraphExecDestroy", word(executable))

"""Reserves addresses and maps memory there: two pieces in a row, the second at two places."""

import ctypes
import struct
import sys

from cuda_calls import call, made, numbers, parameters, start, word

mode, ptx = sys.argv[1:]
piece = 2 << 20
function = start(ptx)
kind, both = struct.pack("<4i16x", 1, 0, 1, 0), struct.pack("<3i", 1, 0, 3)
assert made("cuMemGetAllocationGranularity", kind, 0) == piece
first = made("cuMemAddressReserve", word(2 * piece), word(0), word(0), word(0))
other = made("cuMemAddressReserve", word(piece), word(0), word(0), word(0))
handles = [made("cuMemCreate", word(piece), kind, word(0)) for _ in range(2)]
for number, handle in enumerate(handles):
    place = word(first + number * piece)
    call("cuMemMap", place, word(piece), word(0), word(handle), word(0))
call("cuMemMap", word(other), word(piece), word(0), word(handles[1]), word(0))
call("cuMemMap", word(other), word(piece), word(0), word(handles[1]), word(0), expected=1)
call("cuMemCreate", ctypes.byref(word()), word(piece + 1), kind, word(0), expected=1)
call("cuMemFree_v2", word(first), expected=1)
if mode != "no access":
    call("cuMemSetAccess", word(first), word(2 * piece), both, word(1))
call("cuMemSetAccess", word(other), word(piece), both, word(1))

at = first + piece - 40 * 4  # of 100 numbers 40 lie in the first piece
values = (ctypes.c_float * 100)(*range(100))
call("cuMemcpyHtoD_v2", word(at), values, word(400), expected=int(mode == "no access"))
out = made("cuMemAlloc_v2", word(400))
call("cuMemsetD32_v2", word(out), 0, word(100))
if mode == "unmapped":
    call("cuMemUnmap", word(first + piece), word(piece))
pointers, kept = parameters(out, at, 3, 100)
call("cuLaunchKernel", word(function), 1, 1, 1, 128, 1, 1, 0, None, pointers, None)
found = numbers(out, 100)
print(found[39], found[40], found[99], *numbers(other, 1))

for handle in handles:
    call("cuMemRelease", word(handle))
call("cuMemUnmap", word(first), word(2 * piece))
free = made("cuMemGetInfo_v2", ctypes.byref(word()))
call("cuMemUnmap", word(other), word(piece))  # what was mapped twice lived until now
print((made("cuMemGetInfo_v2", ctypes.byref(word())) - free) // piece)
call("cuMemAddressFree", word(first), word(piece), expected=1)
call("cuMemAddressFree", word(first), word(2 * piece))

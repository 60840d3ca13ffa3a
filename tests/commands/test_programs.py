"""``triton-ext run`` of CUDA C++ and of programs."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys

import click
import pytest
from sites import ROOT

from triton_ext.commands.programs import Kind, found_script, guessed, kind_of
from triton_ext.emulator.host.cuda.nvcc import compiler
from triton_ext.errors import LayoutError

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
SOURCE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cstdio>

__constant__ int scale[2];
__device__ int counted;
__managed__ int managed = 5;

__global__ void neighbours(int *out) {
    auto cluster = cooperative_groups::this_cluster();
    __shared__ int mine;
    if (threadIdx.x == 0) mine = blockIdx.x * scale[1];
    cluster.sync();
    int *other = cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
    if (threadIdx.x == 0) out[blockIdx.x] = *other;
    cluster.sync();
    if (threadIdx.x == 0 && blockIdx.x == 0) managed++, printf("block %d\n", blockIdx.x);
    atomicAdd(&counted, 1);
}

__global__ void meeting(int *out) {
    if (threadIdx.x == 0) out[blockIdx.x] = blockIdx.x + 1;
    cooperative_groups::this_grid().sync();
    if (threadIdx.x == 0) atomicAdd(&counted, out[(blockIdx.x + 1) % gridDim.x]);
}

__global__ void tiles(int *out) {
    auto tile = cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());
    int sum = cooperative_groups::reduce(tile, (int)threadIdx.x, cooperative_groups::plus<int>());
    if (tile.thread_rank() == 0) out[tile.meta_group_rank()] = sum;
}

int main(int count, char **arguments) {
    int *out, host[4], two[2] = {1, 2}, threads;
    cudaDeviceProp of;
    cudaGetDeviceProperties(&of, 0);
    printf("%d%d %d %d %zu %d\n", of.major, of.minor, of.multiProcessorCount, of.clusterLaunch,
           of.sharedMemPerBlockOptin, of.memoryPoolsSupported);
    cudaMalloc(&out, sizeof host);
    cudaMemcpyToSymbol(scale, two, sizeof two);
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {2, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t configuration = {dim3(4), dim3(32), 0, stream, attributes, 2};
    cudaError_t status = cudaLaunchKernelEx(&configuration, neighbours, out);
    cudaMemcpyAsync(host, out, sizeof host, cudaMemcpyDeviceToHost, stream);
    cudaMemcpyFromSymbol(&threads, counted, 4);
    printf("%s %d %d %d %d, %d %d %s\n", cudaGetErrorName(status), host[0], host[1], host[2],
           host[3], threads, managed, arguments[1]);
    void *given[] = {&out};
    status = cudaLaunchCooperativeKernel((void *)meeting, dim3(4), dim3(64), given, 0, stream);
    cudaMemcpyFromSymbol(&threads, counted, 4);
    printf("%s %d\n", cudaGetErrorName(status), threads);
    status = cudaLaunchCooperativeKernel((void *)meeting, dim3(9999), dim3(64), given, 0, stream);
    printf("%s\n", cudaGetErrorName(status));
    neighbours<<<1, 32, 100 << 10>>>(out);
    printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    printf("%s\n", cudaGetErrorName(cudaMemcpy(host, two, 4, cudaMemcpyDeviceToHost)));
    tiles<<<1, 32>>>(out);
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    printf("%d %d %d %d\n", host[0], host[1], host[2], host[3]);

    cudaExtent extent = make_cudaExtent(5, 3, 2);
    unsigned char box[4][4][8] = {};
    cudaMemcpy3DParms copy = {};
    cudaMalloc3D(&copy.srcPtr, extent);
    cudaMemset3D(copy.srcPtr, 1, extent);
    cudaMemset3D(copy.srcPtr, 7, make_cudaExtent(2, 1, 2));
    copy.dstPtr = make_cudaPitchedPtr(box, 8, 8, 4);
    copy.dstPos = make_cudaPos(3, 1, 2);
    copy.extent = extent;
    copy.kind = cudaMemcpyDeviceToHost;
    status = cudaMemcpy3D(&copy);
    int sum = 0;
    for (auto &plane : box) for (auto &row : plane) for (int each : row) sum += each;
    printf("%s %d %d %d %d\n", cudaGetErrorName(status), sum, box[2][1][4], box[2][1][5],
           box[3][3][7]);

    cudaEvent_t first, second;
    float time;
    cudaEventCreate(&first);
    cudaEventCreateWithFlags(&second, cudaEventDisableTiming);
    cudaEventRecord(first);
    cudaEventRecord(second);
    printf("%s\n", cudaGetErrorName(cudaEventElapsedTime(&time, first, second)));
    return 3;
}
"""


def run(*arguments, **options):
    command = [sys.executable, "-m", "triton_ext", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@needs_nvcc
def test_cuda_source(tmp_path):
    """Symbols, managed memory, clusters, grids, streams, printf, errors, arguments, the status."""
    (tmp_path / "own.cu").write_text(SOURCE)
    done = run("--emulate", "sm_90", tmp_path / "own.cu", "last")
    assert done.stdout.splitlines() == [
        f"90 132 1 {227 << 10} 1",
        "block 0",
        "cudaSuccess 2 0 6 4, 128 6 last",
        "cudaSuccess 138",
        "cudaErrorCooperativeLaunchTooLarge",
        "cudaErrorInvalidValue",
        "cudaErrorInvalidValue",
        "28 92 156 220",
        "cudaSuccess 54 7 1 1",
        "cudaErrorInvalidResourceHandle",
    ]
    assert done.returncode == 3
    assert "set cudaFuncAttributeMaxDynamicSharedMemorySize" in done.stderr
    assert "the source is no memory of the GPU" in done.stderr


@needs_nvcc
def test_nvidia_s_own_runtime_library_is_told_what_to_do(tmp_path):
    source, program = tmp_path / "own.cu", tmp_path / "own"
    source.write_text("int main() { return cudaFree(0) != cudaSuccess; }")
    keep = "arch=compute_90a,code=compute_90a"
    subprocess.run(["nvcc", "-gencode", keep, "-o", str(program), str(source)], check=True)
    done = run("--emulate", "sm_90", "--", program)
    assert done.returncode == 1
    assert "link it with -cudart shared" in done.stderr


@needs_nvcc
def test_a_fault_in_a_log(tmp_path):
    done = run("--emulate", "sm_100", "--format", "sarif", ROOT / "examples/scaled_copy.cu")
    (found,) = json.loads(done.stdout)["runs"][0]["results"]
    assert found["ruleId"] == "SynchronizationFault"
    (place,) = found["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"].endswith("scaled_copy.cu")
    assert place["physicalLocation"]["region"]["startLine"] == 19
    assert done.returncode == 1


@needs_nvcc
@needs_nvcc
def test_what_is_undefined_is_said_once(tmp_path):
    text = (ROOT / "examples/scaled_copy.cu").read_text().replace("#ifdef FENCE", "#if 1")
    text = text.replace('asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");', "")
    (tmp_path / "own.cu").write_text(text)
    done = run("--emulate", "sm_90", tmp_path / "own.cu")
    assert (done.returncode, done.stdout) == (0, "2 2\n")
    first, *_ = done.stderr.splitlines()
    assert first.startswith("triton-ext: undefined ["), done.stderr
    assert done.stderr.count("undefined [") == 1
    assert "click" not in done.stderr


def test_source_that_does_not_compile(tmp_path):
    (tmp_path / "own.cu").write_text("int main() { return x; }")
    done = run(tmp_path / "own.cu")
    assert done.returncode == 2
    assert 'identifier "x" is undefined' in done.stderr
    assert "nvcc ends with exit status" in done.stderr


def test_without_nvcc(monkeypatch):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LayoutError, match=r"pip install 'triton-layouts\[cuda\]'"):
        compiler()


def test_what_is_a_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("a.py", "#!/bin/sh\n"), ("a.cu", ""), ("a.sh", "#!/bin/sh\n"),
                       ("b", "#!/usr/bin/env python3\n"), ("c", "x = 1\n")):  # fmt: skip
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    kinds = {name: kind_of(name) for name in ("a.py", "a.cu", "a.sh", "b", "c", sys.executable)}
    assert list(kinds.values()) == [
        Kind.PYTHON, Kind.CUDA, Kind.PROGRAM, Kind.PYTHON, Kind.PYTHON, Kind.PROGRAM,
    ]  # fmt: skip
    # What pip installs in another environment belongs to that one's Python.
    (tmp_path / "d").write_text(f"#!{tmp_path}/python3\nimport sys\n")
    (tmp_path / "d").chmod(stat.S_IRWXU)
    assert kind_of("d") is Kind.PROGRAM
    assert found_script("a.py") == "a.py"
    assert found_script("sh") == shutil.which("sh")
    with pytest.raises(click.BadParameter, match="File 'e' does not exist"):
        found_script("e")


@pytest.mark.parametrize(
    ("text", "arch"), [("wgmma.fence", 90), ("tcgen05.ld; wgmma.fence", 100), ("", 100)]
)
def test_the_architecture_is_that_of_the_instructions(tmp_path, text, arch):
    (tmp_path / "a.cu").write_text(f'asm("{text}");')
    assert guessed(str(tmp_path / "a.cu"), Kind.CUDA) == arch

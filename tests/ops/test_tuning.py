"""`triton_ext.autotune`: what it measures and keeps, and who uses it then."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import mutations
import pytest
from click.testing import CliRunner
from mutations import mutated, some

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_ext  # noqa: E402
from triton_ext import LayoutError, UnsupportedDeviceError  # noqa: E402
from triton_ext.commands.tune import OUT_TYPES, TYPES, as_object, table  # noqa: E402
from triton_ext.commands.tune import tune as tune_command  # noqa: E402
from triton_ext.kernels.choice.choose import choose_config  # noqa: E402
from triton_ext.kernels.choice.problem import Problem as Size  # noqa: E402
from triton_ext.kernels.product import ProductSpec  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402
from triton_ext.ops import (  # noqa: E402
    checks,
    device,
    launches,
    planning,
    plans,
    rule,
    torch_products,
    tuned,
    tuning,
)
from triton_ext.ops import types as ops_types  # noqa: E402
from triton_ext.ops.call import Call  # noqa: E402

PROBLEM = tuned.Problem("NVIDIA H100", 132, "bf16", "K", "K", "bf16", 64, 512, 256)
CONFIG = kernel_spec(90, "bf16", block_m=64, block_n=64, consumers=1, stages=4, split_k=2)
FOUND = tuned.Tuned(CONFIG, 1e-5, 9e-6)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache folder, and nothing known or prepared before and after."""
    monkeypatch.setenv(tuned.FOLDER_VARIABLE, str(tmp_path / "cache"))
    tuned.clear_cache()
    plans.clear_cache()
    yield tmp_path / "cache"
    tuned.clear_cache()
    plans.clear_cache()


@pytest.fixture
def used(monkeypatch):
    """The configurations of the launches that were made, in order."""
    configs = []
    launch = launches.PreparedLaunch.__call__

    def noted(self, *arguments):
        configs.append(self.config)
        launch(self, *arguments)

    monkeypatch.setattr(launches.PreparedLaunch, "__call__", noted)
    return configs


# ---------------------------------------------------------------------------------- the file


def test_where_the_file_is(monkeypatch, tmp_path):
    assert tuned.path() == tmp_path / "cache" / "tuned.json"
    monkeypatch.delenv(tuned.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuned.path() == tmp_path / "triton_ext" / "tuned.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuned.path() == tmp_path / ".cache" / "triton_ext" / "tuned.json"


def test_what_is_stored_is_found_again():
    assert tuned.lookup(PROBLEM) is None
    file = tuned.store(PROBLEM, FOUND)
    assert tuned.lookup(PROBLEM) == FOUND
    tuned.clear_cache()
    assert tuned.lookup(PROBLEM) == FOUND
    for change in (
        {"gpu": "NVIDIA H200"}, {"processors": 114}, {"element_type": "fp16"}, {"a_major": "MN"},
        {"b_major": "MN"}, {"out_type": "fp32"}, {"m": 65}, {"n": 256}, {"k": 64}, {"batch": 2},
    ):  # fmt: skip
        assert tuned.lookup(replace(PROBLEM, **change)) is None
    tuned.store(PROBLEM, FOUND._replace(config=CONFIG.with_fields(stages=5)))
    tuned.clear_cache()
    assert tuned.lookup(PROBLEM).config.tile.stages == 5
    assert [child.name for child in file.parent.iterdir() if child.suffix == ".new"] == []


def test_another_process_finds_it():
    tuned.store(PROBLEM, FOUND)
    code = f"from triton_ext.ops.tuned import *; print(lookup({PROBLEM!r}).config.tile.split_k)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["2"]


def test_other_versions_have_their_own(monkeypatch):
    tuned.store(PROBLEM, FOUND)
    tuned.clear_cache()
    monkeypatch.setattr(tuned, "__version__", "99.0")
    assert tuned.lookup(PROBLEM) is None
    tuned.store(PROBLEM, FOUND._replace(config=CONFIG.with_fields(stages=5)))
    monkeypatch.undo()


def test_writers_lose_nothing_of_each_other():
    """Threads, and processes."""
    code = (
        "import sys; from dataclasses import replace; from test_tuning import *;"
        "[tuned.store(replace(PROBLEM, m=m), FOUND) for m in range(*map(int, sys.argv[1:]))]"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(first), str(first + 20)],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONPATH": str(Path(mutations.__file__).parent)},
        )
        for first in (100, 200)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda m: tuned.store(replace(PROBLEM, m=m), FOUND), range(1, 30)))
    assert [writer.wait() for writer in writers] == [0, 0]
    tuned.clear_cache()
    for m in (*range(1, 30), *range(100, 120), *range(200, 220)):
        assert tuned.lookup(replace(PROBLEM, m=m)) == FOUND


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"3", b"{}", b'{"format": 1, "tuned": []}', b"[" * 100_000,
     b'{"format": 1, "tuned": ' + b"9" * 5000 + b"}", b" " * (tuned.MAX_BYTES + 1)],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_replaced(content):
    tuned.path().parent.mkdir(parents=True)
    tuned.path().write_bytes(content)
    with pytest.warns(RuntimeWarning, match=r"tuned\.json is ignored: "):
        assert tuned.lookup(PROBLEM) is None
    assert tuned.lookup(PROBLEM) is None  # without a warning
    tuned.store(PROBLEM, FOUND)
    assert Path(f"{tuned.path()}.damaged").read_bytes() == content
    tuned.clear_cache()
    assert tuned.lookup(PROBLEM) == FOUND


@pytest.mark.parametrize("form", [0, 2, 3.5, "2", None, [1]])
def test_a_file_of_another_format_is_kept(form):
    tuned.path().parent.mkdir(parents=True)
    content = json.dumps({"format": form, "of a later version": {"x": 1}})
    tuned.path().write_text(content)
    with pytest.warns(RuntimeWarning, match=r"is ignored: its format is .*knows 1"):
        assert tuned.lookup(PROBLEM) is None
    with pytest.raises(OSError, match=f"its format is .* set {tuned.FOLDER_VARIABLE}"):
        tuned.store(PROBLEM, FOUND)
    assert tuned.lookup(PROBLEM) == FOUND, "this process knows it all the same"
    assert tuned.path().read_text() == content


def test_without_a_home(monkeypatch):
    monkeypatch.delenv(tuned.FOLDER_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert tuned.lookup(PROBLEM) is None
    with pytest.raises(OSError, match=f"home directory.* set {tuned.FOLDER_VARIABLE}"):
        tuned.store(PROBLEM, FOUND)
    assert tuned.lookup(PROBLEM) == FOUND


def test_a_pipe_is_no_cache(folder):
    folder.mkdir()
    os.mkfifo(tuned.path())
    with pytest.warns(RuntimeWarning, match="must be a regular file"):
        assert tuned.lookup(PROBLEM) is None


@pytest.mark.parametrize(
    "change",
    [{"element_type": "fp16"}, {"a_major": "MN"}, {"b_major": "MN"}, {"out_type": "fp32"},
     {"batched": True}, {"bias": True}, {"activation": "relu"}, {"residual": True},
     {"alpha": True}, {"a_scales": "one"}],
)  # fmt: skip
def test_an_entry_for_another_product_is_ignored(change):
    """An entry under the key of a product that its configuration does not make."""
    tuned.store(PROBLEM, FOUND)
    content = json.loads(tuned.path().read_text())
    content["tuned"][PROBLEM.key]["config"] |= change
    tuned.path().write_text(json.dumps(content))
    tuned.clear_cache()
    with pytest.warns(RuntimeWarning, match=r"of tuned\.json is ignored: config"):
        assert tuned.lookup(PROBLEM) is None
    assert tuned.lookup(PROBLEM) is None  # without a warning


def test_nothing_in_the_file_stops_a_product(gpu, used):
    """Mutations of a whole file: the product is made, and is right."""
    generator = random.Random(11)
    a, b = torch.ones(64, 256).bfloat16(), torch.ones(256, 512).bfloat16().T.contiguous().T
    problem = replace(PROBLEM, gpu="Emulated")
    legal = CONFIG.fields()
    document = {"format": 1, "tuned": {problem.key: {"config": legal, "seconds": 1e-5}}}
    tuned.path().parent.mkdir(parents=True)
    kept = 0
    for _ in range(some(120)):
        tuned.path().write_text(json.dumps(mutated(document, generator)))
        tuned.clear_cache()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept += tuned.lookup(problem) is not None
            tuned.lookup(problem)
    assert some(8) < kept < some(112)
    plans.clear_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert triton_ext.matmul(a, b)[0, 0] == 256


@pytest.mark.parametrize(
    "entry",
    [None, {}, {"config": {"arch": 90}}, {"config": {"arch": 90, "element_type": "fp1"}},
     {"config": {"arch": 90, "element_type": "bf16", "warps": 3}}, {"config": []}],
)  # fmt: skip
def test_a_damaged_entry_is_ignored(entry):
    tuned.store(PROBLEM, FOUND)
    other = replace(PROBLEM, m=1)
    content = json.loads(tuned.path().read_text())
    content["tuned"][other.key] = entry
    tuned.path().write_text(json.dumps(content))
    tuned.clear_cache()
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert tuned.lookup(PROBLEM) == FOUND
    assert tuned.lookup(other) is None


def test_a_folder_that_cannot_be_written_to(folder):
    folder.write_text("a file")
    with (
        pytest.warns(RuntimeWarning, match="is ignored"),
        pytest.raises(OSError, match=f"cannot write .* set {tuned.FOLDER_VARIABLE}"),
    ):
        tuned.store(PROBLEM, FOUND)
    assert tuned.lookup(PROBLEM) == FOUND


# ---------------------------------------------------------------------------------- measuring


@pytest.fixture
def gpu(monkeypatch, request):
    """An emulated Hopper, or what the test asks for, that says that it is a GPU with a name."""
    arch = getattr(request, "param", 90)
    with triton_ext.emulate(f"sm_{arch}"):
        name = types.SimpleNamespace(name="Emulated", multi_processor_count=132)
        named = device.Gpu(arch, name, None)
        monkeypatch.setattr(checks, "require_gpu", lambda torch_device: named)
        yield named


def the_third_is_fastest(runs, sets, estimate):
    assert sets >= 2
    assert estimate > 0
    runs[2](0)
    runs[2](sets - 1)
    return [3.0, 2.0, 1.0, *(1.0 + i for i in range(3, len(runs)))]


@pytest.mark.parametrize(("gpu", "shapes"), [
    (90, ((64, 72), (72, 64))), (90, ((2, 64, 72), (2, 72, 40))), (100, ((64, 72), (72, 64))),
], indirect=["gpu"])  # fmt: skip
def test_the_fastest_is_used_from_then_on(gpu, used, shapes):
    a, b = (torch.randn(shape).bfloat16() for shape in shapes)
    bias = torch.randn(b.shape[-1]).bfloat16()
    triton_ext.matmul(a, b)
    found = tuning.tune(gpu, Call(a, b), 4, True, the_third_is_fastest)
    assert [row.seconds for row in found.measured] == [1.0, 2.0, 3.0, 4.0]
    batch = a.shape[0] if a.dim() == 3 else 1
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    default = choose_config(gpu.arch, ProductSpec("bf16", "K", "MN"), Size(m, n, k, 132, batch))
    by_seconds = {row.seconds: row.config for row in found.measured}
    assert by_seconds[3.0] == default.with_fields(batched=batch > 1)  # the first to be measured
    assert len({row.config for row in found.measured}) == 4
    assert found.config == by_seconds[1.0]
    assert found.file == tuned.path()
    assert found.torch_seconds == 5.0
    tuned.clear_cache()  # as in a later process
    used.clear()
    made = triton_ext.matmul(a, b)
    assert used == [found.config]
    exact = a.double() @ b.double()
    assert (made.double() - exact).norm() < 2.0**-8 * exact.norm()
    if batch == 1:
        triton_ext.matmul(a, b, bias=bias, activation="relu")
        assert used[1:] == [found.config.with_fields(bias=True, activation="relu")]
    triton_ext.matmul(a[..., :32, :], b)
    default = choose_config(gpu.arch, ProductSpec("bf16", "K", "MN"), Size(32, n, k, 132, batch))
    assert used[-1] == default.with_fields(batched=batch > 1)


def test_what_is_not_kept(gpu):
    a, b = torch.randn(64, 72).half(), torch.randn(72, 40).half()
    found = tuning.tune(gpu, Call(a, b, out_dtype=torch.float32), 4, False, the_third_is_fastest)
    assert found.file is None
    assert not tuned.path().exists()
    assert found.config.product.c_type == "fp32"
    assert found.torch_seconds is None  # torch has no such product
    assert tuned.lookup(found.problem) is None


def test_a_shared_operand_is_tuned_as_it_is_multiplied(gpu, used):
    a, b = torch.randn(3, 64, 72).half(), torch.randn(72, 40).half()
    found = tuning.tune(gpu, Call(a, b.expand(3, 72, 40)), 4, True, the_third_is_fastest)
    assert (found.problem.batch, found.problem.m) == (1, 192)
    used.clear()
    triton_ext.matmul(a, b)
    assert used == [found.config]


def test_operands_that_tma_cannot_read(gpu, used, monkeypatch):
    monkeypatch.setattr(planning, "threads_of", lambda *_: None)  # which take less than copies
    a, b = torch.randn(64, 73).half()[:, 1:], torch.randn(72, 13).half()
    found = tuning.tune(gpu, Call(a, b), 4, True, the_third_is_fastest)
    assert found.torch_seconds is None  # ours would have to copy
    used.clear()
    triton_ext.matmul(a, b)
    assert used == [found.config]
    a = torch.randn(64, 72).half().expand(2, 64, 72)[..., 1:]
    b = torch.randn(2, 71, 40).half()
    found = tuning.tune(gpu, Call(a, b), 4, True, the_third_is_fastest)
    used.clear()
    triton_ext.matmul(a, b)
    assert used == [found.config]


@pytest.mark.parametrize("gpu", [100], indirect=True)
def test_operands_of_8_bits_that_tma_cannot_read(gpu, used):
    a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((64, 128), (128, 40)))
    found = tuning.tune(gpu, Call(a, b), 4, True, the_third_is_fastest)
    assert found.config.product.b_major == "MN"
    used.clear()
    triton_ext.matmul(a, b)
    assert used == [found.config]


@pytest.mark.parametrize(
    ("a", "b", "count", "argument"),
    [((8, 8), (8, 8), 0, "candidates"), ((8, 8), (9, 8), 1, "b.shape"),
     ((0, 8), (8, 8), 1, "a.shape, b.shape"), ((8,), (8, 8), 1, "a.shape")],
)  # fmt: skip
def test_bad_arguments(gpu, a, b, count, argument):
    call = Call(torch.ones(a).half(), torch.ones(b).half())
    with pytest.raises(LayoutError) as caught:
        tuning.tune(gpu, call, count, True, the_third_is_fastest)
    assert caught.value.argument == argument


# ----------------------------------------------------------------- measuring every product


@pytest.fixture
def measured(gpu, monkeypatch):
    """Every product is measured; torch's takes as long as the test says. Yields what was."""
    asked = types.SimpleNamespace(torch_seconds=9.0, problems=[])
    measure = tuning.measure

    def noted(*arguments):
        found = measure(*arguments)
        asked.problems.append(found.problem)
        return found

    def seconds(runs, sets, estimate):
        *ours, _ = the_third_is_fastest(runs, sets, estimate)
        if len(runs) == tuning.FEW:
            return [*ours, 9.0]
        runs[-1](0)
        return [*ours, asked.torch_seconds]

    monkeypatch.setattr(tuning, "measure", noted)
    monkeypatch.setattr(tuning, "device_seconds", seconds)
    monkeypatch.setattr(torch_products, "offers", lambda torch_device: True)
    monkeypatch.setattr(rule, "_given", None)
    triton_ext.measured_kernels()
    yield asked
    plans.clear_cache()


def test_every_product_is_measured_once(measured, used):
    a, b = torch.randn(2, 48, 72).half(), torch.randn(72, 40).half()
    made = triton_ext.matmul(a, b)
    (problem,) = measured.problems
    assert (problem.batch, problem.m, problem.n, problem.k) == (1, 96, 40, 72)
    assert used[-1] == tuned.lookup(problem).config
    assert (made.double() - a.double() @ b.double()).abs().max() < 0.1
    triton_ext.matmul(a, b)
    triton_ext.linear(a, b.t(), torch.zeros(40).half(), activation="relu")
    plans.clear_cache()
    tuned.clear_cache()  # as in a later process
    triton_ext.matmul(a, b)
    assert len(measured.problems) == 1
    triton_ext.bmm(a, b.expand(2, 72, 40).contiguous())
    triton_ext.matmul(a[:, :40], b, out_dtype=torch.float32)
    assert [(each.batch, each.m, each.out_type) for each in measured.problems[1:]] == [
        (2, 48, "fp16"), (1, 80, "fp32")
    ]  # fmt: skip
    triton_ext.measured_kernels(False)
    triton_ext.matmul(a[:, :8], b)
    assert len(measured.problems) == 3


def test_the_environment_says_so_too(measured, monkeypatch):
    a = torch.ones(16, 16).half()
    for value, number in (("all", 0), ("measured", 1)):
        monkeypatch.setattr(rule, "_given", None)
        monkeypatch.setenv(rule.VARIABLE, value)
        plans.clear_cache()
        triton_ext.matmul(a, a)
        assert len(measured.problems) == number


@pytest.mark.parametrize(("torch_seconds", "is_left"), [(0.99, True), (1.0, False), (1.5, False)])
def test_a_drop_in_leaves_what_torch_makes_faster(measured, used, torch_seconds, is_left):
    measured.torch_seconds = torch_seconds  # ours takes 1.0
    a, b, bias = torch.randn(64, 72).half(), torch.randn(40, 72).half(), torch.randn(40).half()
    c, square = torch.randn(64, 40).half(), torch.ones(64, 64).half()

    def ours(product):
        """Whether a product is made by our kernels, once it was measured."""
        product()
        used.clear()
        product()
        return bool(used)

    with triton_ext.drop_in():
        assert ours(lambda: torch.mm(a, b.t())) is not is_left
        assert ours(lambda: torch.nn.functional.linear(a, b, bias)) is not is_left
        assert ours(lambda: torch.mm(square, square)) is not is_left
        assert ours(lambda: torch.mm(square, square, out=square)), "which torch would make wrong"
        assert ours(lambda: torch.addmm(c, a, b.t())), "which takes torch a pass more"
    assert ours(lambda: triton_ext.linear(a, b)), "which was asked for by name"


def test_an_output_that_is_an_operand_stays_right(measured):
    measured.torch_seconds = 0.5
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    for _ in range(3):
        expected = a.double() @ b.double()
        with triton_ext.drop_in():
            torch.mm(a, b, out=a)
        assert (a.double() - expected).norm() < 2.0**-9 * expected.norm()


@pytest.mark.parametrize("error", [OSError("no space"), torch.OutOfMemoryError("CUDA")])
def test_what_cannot_be_measured_is_predicted(measured, monkeypatch, used, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(tuning, "measure", fail)
    a = torch.ones(16, 24).half()
    with pytest.warns(RuntimeWarning, match="not measured: .*1x16x16x24: (no space|CUDA)"):
        made = triton_ext.matmul(a, a.t())
    assert made[0, 0] == 24
    assert used == [choose_config(90, ProductSpec("fp16"), Size(16, 16, 24))]


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_an_emulated_gpu_has_no_time(arch):
    a = torch.ones(8, 8).half()
    with triton_ext.emulate(arch), pytest.raises(UnsupportedDeviceError, match="emulated"):
        triton_ext.autotune(a, a)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_on_an_emulated_gpu_nothing_is_measured(arch, monkeypatch):
    monkeypatch.setattr(rule, "_given", None)
    triton_ext.measured_kernels()
    monkeypatch.setattr(tuning, "measure", lambda *_: pytest.fail("measured"))
    a = torch.ones(8, 8).half()
    with triton_ext.emulate(arch):
        assert triton_ext.matmul(a, a)[0, 0] == 8


# --------------------------------------------------------------------------------- the command


def test_the_command_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "triton_ext", "tune", "64", "64", "64"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "triton-ext: this needs a Hopper or Blackwell GPU, and torch sees no GPU here"
    )


def test_the_command(monkeypatch, gpu):
    """With what it asks torch and `autotune` for replaced."""
    asked = {}

    def autotune(a, b, **options):
        asked.update(a=a, b=b, **options)
        call = Call(a, b, out_dtype=options["out_dtype"])
        return tuning.tune(gpu, call, 4, True, the_third_is_fastest)

    randn = torch.randn
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "randn", lambda shape, device: randn(shape))
    monkeypatch.setattr(tuning, "autotune", autotune)
    arguments = ["64", "40", "72", "--type", "fp16", "--candidates", "4", "--a-major", "MN"]
    done = CliRunner().invoke(tune_command, arguments, catch_exceptions=False)
    assert asked["a"].shape == (64, 72)
    assert asked["a"].stride() == (1, 64)
    assert asked["b"].stride() == (1, 72)
    assert asked["candidates"] == 4
    lines = done.output.splitlines()
    assert lines[0] == "Emulated: 64 x 40 x 72, fp16 (MN- and K-major) -> fp16"
    assert len(lines) == 2 + 4 + 1 + 1
    assert lines[-2].endswith(" torch")
    assert lines[2].split()[:2] == ["1000000.0", "us"]
    assert lines[-1] == f"the first is kept in {tuned.path()}"
    done = CliRunner().invoke(
        tune_command, [*arguments, "--batch", "2", "--format", "json"], catch_exceptions=False
    )
    found = json.loads(done.output)
    assert (found["version"], found["problem"]["batch"]) == (1, 2)
    assert [row["seconds"] for row in found["measured"]] == [1, 2, 3, 4]
    assert found["torch_seconds"] == 5


def test_the_command_has_all_types():
    for names, known in ((TYPES, ops_types.OPERAND_NAMES), (OUT_TYPES, ops_types.OUTPUT_NAMES)):
        assert {getattr(torch, kind): name for name, kind in names.items()} == known


def test_table_and_object_agree(gpu):
    a = torch.ones(64, 64).half()
    found = tuning.tune(gpu, Call(a, a), 4, False, the_third_is_fastest)
    assert list(table(found))[-1] == "not kept"
    assert as_object(found)["file"] is None
    assert len(as_object(found)["measured"]) == 4

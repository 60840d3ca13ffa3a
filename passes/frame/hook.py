"""Running passes inside of Triton: its hook into the list of stages, and its cache.

Triton (3.7 to 3.9) calls ``knobs.runtime.add_stages_inspection_hook`` without arguments for what
the keys of its caches must contain, and with the stages of a compilation to change them. What
passes report is kept with the kernel in Triton's cache (in its metadata, under ``triton_ext``), so
that a kernel that is found there reports again; ``knobs.compilation.listener`` says when.

Which passes are on is a property of the thread (a context variable); passes of the environment
variable TRITON_EXT_PASSES are on everywhere.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.errors import TritonError

from triton_ext.errors import LayoutError, PassError
from triton_ext.hardware.architecture import Architecture, architecture
from triton_ext.mlir.module import Location
from triton_ext.passes.frame.base import Compilation, ConfiguredPass, Diagnostic, Stage
from triton_ext.passes.frame.pipeline import PassLike, PassResult, Pipeline, run_stage
from triton_ext.passes.frame.reports import present, warn
from triton_ext.startup import ENVIRONMENT

_METADATA = "triton_ext"


class PassCompilationError(PassError, TritonError):  # type: ignore[misc]  # Triton is not typed
    """A pass ended a compilation. It is an error of Triton's, too."""


@dataclass
class Results:
    """What the passes of one ``with enabled(...)`` said, kernel by kernel."""

    all: list[PassResult] = field(default_factory=list)

    def of(self, name: str) -> list[PassResult]:
        """What one pass said."""
        return [result for result in self.all if result.compiler_pass.name == name]

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The diagnostics of all passes."""
        return [diagnostic for result in self.all for diagnostic in result.diagnostics]


@dataclass(frozen=True)
class _Active:
    """What is on in a thread."""

    pipeline: Pipeline
    results: tuple[Results, ...] = ()


_NOTHING = _Active(Pipeline())
_active: ContextVar[_Active] = ContextVar("triton_ext_passes", default=_NOTHING)
_lock = threading.RLock()
_users = 0


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Pipeline:
    try:
        return Pipeline.of([text]) if text.strip() else Pipeline()
    except LayoutError as error:
        raise PassCompilationError(f"the environment variable {ENVIRONMENT}: {error}") from error


def active_pipeline() -> Pipeline:
    """The passes that are on for what this thread compiles."""
    return _parsed(os.environ.get(ENVIRONMENT, "")).extended(_active.get().pipeline.passes)


class _Hook:
    """Triton's stages hook; what was there before is called first."""

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, *arguments: Any) -> Any:
        if not arguments:
            key, digest = self.previous() if self.previous else ("", "")
            own = active_pipeline().key
            if own:
                _refuse_other_threads()
            return key + own, digest + own.replace('"', "'")
        if self.previous:
            self.previous(*arguments)
        _, stages, _, _, capability = arguments
        pipeline = active_pipeline()
        if pipeline and (arch := _supported(capability, pipeline)) is not None:
            _Stages(pipeline, arch, stages).wrap()
        return None


def _supported(capability: Any, pipeline: Pipeline) -> Architecture | None:
    try:
        return architecture(capability)
    except LayoutError:
        warn(
            Diagnostic(
                "warning",
                f"the passes {pipeline} know sm_90 and sm_100, and do not run for capability"
                f" {capability}",
            )
        )
        return None


def _refuse_other_threads() -> None:
    """Triton's asynchronous compilation happens in threads that do not know this one's passes."""
    from triton.runtime import _async_compile

    if _async_compile.active_mode.get() is not None and _active.get().pipeline:
        raise PassCompilationError(
            "triton.AsyncCompileMode compiles in other threads, in which the passes of"
            f" `enabled(...)` are off; use {ENVIRONMENT}, or compile without it"
        )


class _Listener:
    """Triton's compilation listener: shows what passes found, also where the cache had it."""

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, **event: Any) -> None:
        if self.previous:
            self.previous(**event)
        pipeline = active_pipeline()
        if not pipeline:
            return
        metadata = event["metadata"]
        configured = {each.name: each for each in pipeline.passes}
        for stored in metadata.get(_METADATA, ()):
            if stored["pass"] not in configured:
                continue
            result = _restored(stored, configured[stored["pass"]])
            for results in _active.get().results:
                results.all.append(result)
            present(result)


def _stored(result: PassResult) -> dict[str, Any]:
    return {
        "pass": result.compiler_pass.name,
        "kernel": result.kernel,
        "report": result.report,
        "diagnostics": [asdict(diagnostic) for diagnostic in result.diagnostics],
    }


def _location(stored: Any) -> Location | None:
    if stored is None:
        return None
    callers = tuple(found for each in stored["callers"] if (found := _location(each)))
    return Location(stored["file"], stored["line"], stored["column"], callers)


def _restored(stored: dict[str, Any], configured: ConfiguredPass) -> PassResult:
    diagnostics = [
        Diagnostic(**{**each, "location": _location(each["location"])})
        for each in stored["diagnostics"]
    ]
    return PassResult(stored["kernel"], configured, stored["report"], tuple(diagnostics))


class _Stages:
    """The stages of one compilation, with passes behind them."""

    def __init__(self, pipeline: Pipeline, arch: Architecture, stages: dict[str, Any]) -> None:
        self.pipeline, self.arch, self.stages = pipeline, arch, stages
        self.texts: dict[str, str] = {}
        self.kernel = ""
        self.ran: set[Stage] = set()

    def wrap(self) -> None:
        for name, wrapped in (("ttgir", self.ttgir), ("llir", self.llir), ("ptx", self.ptx)):
            if name in self.stages:
                self.stages[name] = functools.partial(wrapped, self.stages[name])

    def ttgir(self, compile_ir: Callable[..., Any], source: Any, metadata: dict[str, Any]) -> Any:
        return self.after_ttgir(compile_ir(source, metadata), metadata)

    def after_ttgir(self, module: Any, metadata: dict[str, Any]) -> Any:
        """Run the passes on a module of Triton's; the module, or the one that they made of it."""
        self.kernel = module.get_entry_func_name()
        if self.pipeline.at("ttgir"):
            changed: list[Any] = []

            def check(each: ConfiguredPass, text: str) -> str:
                changed.append(parse_module(text, module.context, each.name, self.kernel))
                return str(changed[-1])

            self.run("ttgir", str(module), metadata, check)
            if changed:
                module = changed[-1]
                metadata["tensordesc_meta"] = module.get_tensordesc_metadata()
        self.ran.add("ttgir")
        return module

    def llir(self, compile_ir: Callable[..., Any], module: Any, metadata: dict[str, Any]) -> Any:
        if "ttgir" not in self.ran:  # the compilation begins with TTGIR
            module = self.after_ttgir(module, metadata)
        if self.pipeline.at("llir") or self.pipeline.at("ptx"):
            self.texts["ttgir"] = str(module)
        return self.run("llir", compile_ir(module, metadata), metadata, _unchecked)

    def ptx(self, compile_ir: Callable[..., Any], source: Any, metadata: dict[str, Any]) -> Any:
        text = compile_ir(source, metadata)
        self.kernel = metadata["name"]
        return self.run("ptx", text, metadata, _unchecked)

    def run(
        self,
        stage: Stage,
        text: str,
        metadata: dict[str, Any],
        check: Callable[[ConfiguredPass, str], str],
    ) -> str:
        self.texts[stage] = text
        if not self.pipeline.at(stage):
            return text
        compilation = Compilation(self.kernel, self.arch, stage, dict(self.texts), dict(metadata))
        try:
            text, results = run_stage(self.pipeline, compilation, check)
        except PassError as error:
            raise PassCompilationError(str(error), error.diagnostics) from error
        self.texts[stage] = text
        metadata[_METADATA] = [*metadata.get(_METADATA, ()), *map(_stored, results)]
        return text


def _unchecked(each: ConfiguredPass, text: str) -> str:
    """LLVM and ptxas, which come next, check what they are given."""
    return text


def parse_module(text: str, context: Any, name: str, kernel: str) -> Any:
    """A module of Triton's from text, verified.

    Raises:
        PassError: MLIR's parser or verifier refuses it; what they say is on stderr.
    """
    from triton._C.libtriton import ir

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kernel}.ttgir"
        path.write_text(text)
        try:
            module = ir.parse_mlir_module(str(path), context)
            legal = module.verify()
        except RuntimeError as error:
            raise PassError(f"the pass {name} made no legal module of {kernel}: {error}") from None
    if not legal:
        raise PassError(f"the pass {name} made a module of {kernel} that MLIR's verifier refuses")
    module.context = context
    return module


def install() -> None:
    """Put the hook and the listener into Triton's knobs, around those that are there."""
    with _lock:
        runtime, compilation = triton.knobs.runtime, triton.knobs.compilation
        if not isinstance(runtime.add_stages_inspection_hook, _Hook):
            runtime.add_stages_inspection_hook = _Hook(runtime.add_stages_inspection_hook)
        if not isinstance(compilation.listener, _Listener):
            compilation.listener = _Listener(compilation.listener)


def _uninstall() -> None:
    """Take them out again, unless somebody has put another one around them."""
    runtime, compilation = triton.knobs.runtime, triton.knobs.compilation
    if isinstance(runtime.add_stages_inspection_hook, _Hook):
        runtime.add_stages_inspection_hook = runtime.add_stages_inspection_hook.previous
    if isinstance(compilation.listener, _Listener):
        compilation.listener = compilation.listener.previous


@contextlib.contextmanager
def enabled(*passes: PassLike) -> Iterator[Results]:
    """Run passes on every kernel that this thread compiles inside of the ``with``.

    Nested, the inner passes run behind the outer ones; one that is named again gets its new
    options.

    Args:
        passes: names, with options in MLIR's notation (``"report-layouts{format=json}"``), or
            passes of `triton_ext.passes`.

    Yields:
        What the passes say, as kernels are compiled, or found in Triton's cache.

    Raises:
        LayoutError: an unknown pass or option.
        PassCompilationError: from a launch, when a pass finds an error in the kernel.
    """
    global _users
    before = _active.get()
    results = Results()
    pipeline = before.pipeline.extended(Pipeline.of(passes).passes)
    with _lock:
        _users += 1
        install()
    token = _active.set(_Active(pipeline, (*before.results, results)))
    try:
        yield results
        if not isinstance(triton.knobs.runtime.add_stages_inspection_hook, _Hook) and pipeline:
            hook = triton.knobs.runtime.add_stages_inspection_hook
            warn(
                Diagnostic(
                    "warning",
                    f"Triton's stages hook was replaced by {hook!r} while passes were enabled; they"
                    " ran only if it calls the hook that it found",
                )
            )
    finally:
        _active.reset(token)
        with _lock:
            _users -= 1
            if not _users and not os.environ.get(ENVIRONMENT):
                _uninstall()

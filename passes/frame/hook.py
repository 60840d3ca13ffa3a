"""Running passes inside of Triton: its hook into the list of stages, and its cache.

Triton (3.7 to 3.9) calls ``knobs.runtime.add_stages_inspection_hook`` without arguments for what
the keys of its caches must contain, at every launch (``JITFunction.run``), and with the stages of a
compilation to change them. What passes say is kept with the kernel in Triton's cache, in its
metadata, so that a kernel that is found there reports again; ``knobs.compilation.listener`` says
when. ``kernel.metadata.triton_layouts`` has, for each pass that ran, its ``report`` and its
``diagnostics``, as JSON.

Which passes are on is a property of the thread (a context variable, `enabled`); passes of `install`
and of the environment variable TRITON_EXT_PASSES are on everywhere.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import triton
import triton.knobs
from triton.errors import TritonError
from triton.runtime import _async_compile

from triton_ext import variables
from triton_ext.errors import LayoutError, PassError
from triton_ext.findings import Finding
from triton_ext.hardware.architecture import KNOWN, generation, target_number
from triton_ext.mlir.locations import Location
from triton_ext.passes.frame.base import Compilation, ConfiguredPass, Diagnostic, Stage
from triton_ext.passes.frame.pipeline import PassLike, PassResult, Pipeline, run_stage
from triton_ext.passes.frame.reports import present, warn
from triton_ext.passes.frame.trial import tried

_METADATA = "triton_layouts"
"""The field of a kernel's metadata; the distribution's name, as other extensions do it."""


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

    def findings(self) -> list[Finding]:
        """The same, for machines."""
        return [
            diagnostic.finding(result.compiler_pass.name)
            for result in self.all
            for diagnostic in result.diagnostics
        ]


@dataclass
class _Active:
    """What is on in a thread.

    Attributes:
        pipeline: the passes of `enabled`.
        known: what `active_pipeline` has made of it last, behind what it made it of.
    """

    pipeline: Pipeline
    results: tuple[Results, ...] = ()
    known: tuple[Pipeline, str, Pipeline] | None = None


_NOTHING = _Active(Pipeline())
_active: ContextVar[_Active] = ContextVar("triton_ext_passes", default=_NOTHING)
_lock = threading.RLock()
_users = 0
_installed = Pipeline()
_environment = ""
"""TRITON_EXT_PASSES, as it was when the hook was last put in: to read it takes as long as all else
that a launch does here."""


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Pipeline:
    try:
        return Pipeline.of([text]) if text.strip() else Pipeline()
    except (LayoutError, PassError) as error:
        why = f"the environment variable {variables.PASSES}: {error}"
        raise PassCompilationError(why) from None


def active_pipeline() -> Pipeline:
    """The passes that are on for what this thread compiles: the same object until they change, so
    that it computes its key but once.
    """
    active, everywhere, environment = _active.get(), _installed, _environment
    known = active.known
    if known is None or known[0] is not everywhere or known[1] != environment:
        pipeline = everywhere.extended(_parsed(environment).passes)
        pipeline = pipeline.extended(active.pipeline.passes)
        known = active.known = (everywhere, environment, pipeline)
    return known[2]


class _Around:
    """What is put into one of Triton's knobs; what was there before is called first.

    Others may put theirs around it, and leave it there, so that it is called within a later one of
    its kind: of those only the outermost acts.
    """

    _inside: ClassVar[ContextVar[bool]]
    """Whether one of the kind is calling the one before it."""

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, *arguments: Any, **event: Any) -> Any:
        before = None
        if self.previous:
            token = self._inside.set(True)
            try:
                before = self.previous(*arguments, **event)
            finally:
                self._inside.reset(token)
        if self._inside.get():
            return before or (None if arguments or event else ("", ""))
        return self.act(before, *arguments, **event)

    def act(self, before: Any, *arguments: Any, **event: Any) -> Any:
        """Do the work; `before` is what the one before answered."""
        raise NotImplementedError


class _Hook(_Around):
    """Triton's stages hook."""

    _inside = ContextVar("inside_hook", default=False)

    def act(self, before: Any, *arguments: Any, **_: Any) -> Any:
        if not arguments:
            key, digest = before or ("", "")
            pipeline = active_pipeline()
            if pipeline:
                _refuse_other_threads()
                _put(triton.knobs.compilation, "listener", _Listener)  # if somebody replaced it
            return key + pipeline.key, digest + pipeline.digest
        _, stages, _, _, capability = arguments
        pipeline = active_pipeline()
        if pipeline and (target := _supported(capability, pipeline)) is not None:
            _Stages(pipeline, target, stages).wrap()
        return None


def _supported(capability: Any, pipeline: Pipeline) -> int | None:
    try:
        return target_number(capability)
    except LayoutError:
        warn(
            Diagnostic(
                "warning",
                f"the passes {pipeline} know {KNOWN}, and do not run for capability {capability}",
            )
        )
        return None


def _refuse_other_threads() -> None:
    """Triton's asynchronous compilation happens in threads that do not know this one's passes."""
    if _async_compile.active_mode.get() is not None and _active.get().pipeline:
        raise PassCompilationError(
            "triton.AsyncCompileMode compiles in other threads, in which the passes of"
            f" `enabled(...)` are off; use {variables.PASSES}, or compile without it"
        )


class _Listener(_Around):
    """Triton's compilation listener: shows what passes found where the cache had it."""

    _inside = ContextVar("inside_listener", default=False)

    def act(self, before: Any, *_: Any, **event: Any) -> None:
        if event["cache_hit"]:
            metadata = event["metadata"]
            _deliver(metadata["name"], metadata.get(_METADATA, {}))


def _deliver(kernel: str, stored: Mapping[str, Any]) -> None:
    """Show what passes said of a kernel, and hand it to those who asked."""
    configured = {each.name: each for each in active_pipeline().passes}
    for name, said in stored.items():
        if name not in configured or (said["report"] is None and not said["diagnostics"]):
            continue
        result = _restored(kernel, configured[name], said)
        for results in _active.get().results:
            results.all.append(result)
        present(result)


def _stored(result: PassResult) -> dict[str, Any]:
    """What a pass said, as it will be read from the cache."""
    said = {
        "report": result.report,
        "diagnostics": [asdict(diagnostic) for diagnostic in result.diagnostics],
    }
    try:
        stored: dict[str, Any] = json.loads(json.dumps(said))
    except (TypeError, ValueError) as error:
        name = result.compiler_pass.name
        raise PassError(f"the report of the pass {name} cannot be kept as JSON: {error}") from None
    return stored


def _location(stored: Any) -> Location | None:
    if stored is None:
        return None
    callers = tuple(found for each in stored["callers"] if (found := _location(each)))
    return Location(stored["file"], stored["line"], stored["column"], callers)


def _restored(kernel: str, configured: ConfiguredPass, stored: dict[str, Any]) -> PassResult:
    diagnostics = [
        Diagnostic(**{**each, "location": _location(each["location"])})
        for each in stored["diagnostics"]
    ]
    return PassResult(kernel, configured, stored["report"], tuple(diagnostics))


class _Stages:
    """The stages of one compilation, with passes behind them."""

    def __init__(self, pipeline: Pipeline, target: int, stages: dict[str, Any]) -> None:
        self.pipeline, self.target, self.stages = pipeline, target, stages
        self.texts: dict[str, str] = {}
        self.kernel = ""
        self.ran: set[Stage] = set()
        self.lower = stages.get("llir")

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
                self.try_to_lower(each, text, module.context, metadata)
                changed.append(parse_module(text, module.context, each.name, self.kernel))
                return str(changed[-1])

            self.run("ttgir", str(module), metadata, check)
            if changed:
                module = changed[-1]
                metadata["tensordesc_meta"] = module.get_tensordesc_metadata()
        self.ran.add("ttgir")
        return module

    def try_to_lower(
        self, each: ConfiguredPass, text: str, context: Any, metadata: dict[str, Any]
    ) -> None:
        """Lower a changed module to LLVM IR in a fork: where Triton aborts on it, the fork dies.
        Raises PassError: it does; or the change is one that may be left out, and Triton refuses it.
        """

        def work() -> None:
            from triton._C.libtriton import llvm

            llvm.to_module = _lowered  # what follows, LLVM's optimizer, takes most of the time
            changed = parse_module(text, context, each.name, self.kernel)
            with contextlib.suppress(_LoweredError):
                if self.lower is not None:
                    self.lower(changed, dict(metadata))

        trial = tried(work)
        if trial.died:
            raise PassError(
                f"the pass {each.name} made a module of {self.kernel} on which Triton aborts:"
                f" {trial.message}",
                compiler_pass=each.name,
            )
        if trial.message and each.compiler_pass.is_optional:
            raise PassError(trial.message, compiler_pass=each.name)

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
        compilation = Compilation(
            self.kernel,
            generation(self.target),
            stage,
            dict(self.texts),
            dict(metadata),
            self.target,
        )
        try:
            text, results = run_stage(self.pipeline, compilation, check)
            stored = {each.compiler_pass.name: _stored(each) for each in results}
        except PassError as error:
            # A traceback would print the message once more, were the one the cause of the other.
            raise PassCompilationError(str(error), error.diagnostics, error.compiler_pass) from None
        self.texts[stage] = text
        metadata[_METADATA] = {**metadata.get(_METADATA, {}), **stored}
        _deliver(self.kernel, stored)
        return text


class _LoweredError(Exception):
    """In a trial: the module is lowered."""


def _lowered(*_: Any) -> None:
    raise _LoweredError


def _unchecked(each: ConfiguredPass, text: str) -> str:
    """LLVM and ptxas, which come next, check what they are given."""
    return text


def parse_module(text: str, context: Any, name: str, kernel: str) -> Any:
    """A module of Triton's from text, verified. Raises PassError: MLIR's parser or verifier refuses
    it; what they say is on stderr."""
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


def install(*passes: PassLike) -> None:
    """Put the hook and the listener into Triton's knobs, around those that are there.

    Args:
        passes: what is on from now on, in all threads, as `enabled` takes it; behind the passes of
            earlier calls.

    Raises:
        LayoutError: an unknown pass or option.
        PassError: a pass of others cannot be imported.
    """
    global _installed, _environment
    with _lock:
        if passes:
            _installed = _installed.extended(Pipeline.of(passes).passes)
        _environment = os.environ.get(variables.PASSES, "")
        for knobs, name, kind in _knobs():
            _put(knobs, name, kind)


def uninstall() -> None:
    """Turn off the passes of `install`, and take hook and listener out where nobody needs them."""
    global _installed
    with _lock:
        _installed = Pipeline()
        _take_out()


def _knobs() -> list[tuple[Any, str, type[_Around]]]:
    return [
        (triton.knobs.runtime, "add_stages_inspection_hook", _Hook),
        (triton.knobs.compilation, "listener", _Listener),
    ]


def _put(knobs: Any, name: str, kind: type[_Around]) -> None:
    if not isinstance(getattr(knobs, name), kind):
        setattr(knobs, name, kind(getattr(knobs, name)))


def _take_out() -> None:
    """Take hook and listener out, unless passes are on, or somebody has put another one around."""
    if _users or _installed or os.environ.get(variables.PASSES):
        return
    for knobs, name, kind in _knobs():
        if isinstance(found := getattr(knobs, name), kind):
            setattr(knobs, name, found.previous)


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
            _take_out()


if os.environ.get(variables.PASSES):
    install()

"""What pyproject.toml cannot say: the wheel holds a file beside the package.

``triton_ext_startup.pth`` lets TRITON_EXT_PASSES and TRITON_EXT_EMULATE work for programs that do
not import this project. An editable install does without it.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PTH = "triton_ext_startup.pth"


class BuildWithPth(build_py):
    """Copies the .pth file to the top of what is installed."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file(PTH, str(Path(self.build_lib) / PTH))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib) / PTH)]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), PTH]


setup(cmdclass={"build_py": BuildWithPth})

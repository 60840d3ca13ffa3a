"""What pyproject.toml cannot say: the packages are found, in three folders of the checkout; and the
wheel holds a file beside them.

``triton_ext_startup.pth`` lets TRITON_EXT_PASSES and TRITON_EXT_EMULATE work for programs that do
not import this project. An editable install does without it.
"""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = {
    "triton_ext": "triton_ext",
    "triton_ext.passes": "passes",
    "triton_ext.kernels": "kernels",
}
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


setup(
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{each}" for each in find_packages(folder)))
    ],
    package_dir=FOLDERS,
    py_modules=["triton_layouts"],
    # Whatever lies beside the modules is data of theirs.
    include_package_data=False,
    package_data={"": ["**"]},
    exclude_package_data={"": ["**/__pycache__/*", "**/*.py[co]", "*.py[co]"]},
    cmdclass={"build_py": BuildWithPth},
)

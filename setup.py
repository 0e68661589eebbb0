"""What pyproject.toml cannot say: which modules of the repository root belong to the package.

The root is the package `normtune`, so setuptools would put every *.py file beside this one into the wheel, the
heuristics.py that `make tune` writes included.
"""

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT_MODULES = {"__init__", "__main__", "cli", "errors"}


class BuildPy(build_py):
    """`build_py` that takes `ROOT_MODULES` alone from the root."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The (package, module, file) of each module of a package."""
        found = super().find_package_modules(package, package_dir)
        return [entry for entry in found if package != "normtune" or entry[1] in ROOT_MODULES]


setup(cmdclass={"build_py": BuildPy})

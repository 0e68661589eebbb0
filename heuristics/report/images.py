"""Renders charts to pictures without a browser, and checks that the extra `report` is installed.

In: a specification with its data. Out: PNG, SVG or PDF.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from normtune.errors import NormtuneError, UsageError

if TYPE_CHECKING:
    from normtune.heuristics.report.theme import Spec

INSTALL = "pip install 'normtune[report]'"
_FORMATS = (".png", ".svg", ".pdf")
# Pixels of a PNG for each pixel of a specification.
_SCALE = 2


def is_installed() -> bool:
    """Whether the packages that draw are installed."""
    return not _missing_package()


def check_extra() -> None:
    """Raise `NormtuneError` if the packages that draw are not installed."""
    if name := _missing_package():
        raise NormtuneError(
            f"pages and pictures are drawn by Altair and vl-convert, and {name} is not installed: {INSTALL}"
        )


def _missing_package() -> str:
    """The first of the packages that is not installed; empty if all are."""
    for name in ("altair", "vl_convert"):
        try:
            import_module(name)
        except ImportError:
            return name
    return ""


@cache
def library() -> str:
    """The JavaScript of Vega, Vega-Lite and vega-embed, escaped for an element `script`."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub requires an argument that is optional
    return bundle.replace("</script", "<\\/script")


def check_format(path: Path) -> None:
    """Raise `UsageError` if a file's name has the suffix of no format."""
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"the picture is {str(path)!r}: expected a file that ends with {', '.join(_FORMATS)}")


def picture(spec: "Spec", suffix: str) -> bytes:
    """The picture in the format of a file with this suffix."""
    import vl_convert

    if suffix.lower() == ".png":
        return vl_convert.vegalite_to_png(spec, scale=_SCALE, allowed_base_urls=[])
    if suffix.lower() == ".pdf":
        return vl_convert.vegalite_to_pdf(spec, allowed_base_urls=[])
    return vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]).encode()

"""Facts about the packages of this machine, for `kernels.calling.probe.facts_in_child`.

In: nothing. Out: the version of Triton and of the dependencies, or why they are missing.
"""

from importlib import import_module, metadata

from normtune.kernels.calling.probe import Facts, message

# Dependencies beside torch, Triton and the vendor's library. Each distribution has the name of its module.
PACKAGES = ("numpy", "optuna", "pandas", "pebble", "pyarrow", "rich", "scipy", "sqlalchemy", "threadpoolctl", "typer")


def triton_facts() -> Facts:
    """`missing`, or `version` and `cache`, the folder of its compiled kernels."""
    try:
        import triton
        from triton import knobs

        return {"version": triton.__version__, "cache": str(knobs.cache.dir)}
    except (Exception, SystemExit) as error:
        return {"missing": message(error)}


def package_facts() -> Facts:
    """Version of each of `PACKAGES`, or the reason why it is `missing`."""
    facts: Facts = {}
    for name in PACKAGES:
        reason = _importable(name)
        facts[name] = {"missing": reason} if reason else {"version": metadata.version(name)}
    return facts


def _importable(name: str) -> str:
    """Reason why a package cannot be imported or has no metadata; empty if it can and has."""
    try:
        metadata.version(name)
        import_module(name)
    except (Exception, SystemExit) as error:
        return message(error)
    return ""

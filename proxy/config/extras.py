"""Parts of the package that are installed apart, and how."""


def missing_extra(name: str) -> str:
    """Return how to install an extra that is not there: where the package is a clone, as README says."""
    return (
        f"the extra {name} is not installed; in the repository: `uv tool install '.[{name}]'`,"
        f" `pipx install --force '.[{name}]'`, or `pip install '.[{name}]'` in a virtual environment"
    )

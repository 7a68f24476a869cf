"""Install instructions for the package's optional extras."""


def missing_extra(name: str) -> str:
    """Return how to install a missing extra if the package is a clone, as README describes."""
    return (
        f"the extra {name} is not installed; in the repository: `uv tool install '.[{name}]'`,"
        f" `pipx install --force '.[{name}]'`, or `pip install '.[{name}]'` in a virtual environment"
    )

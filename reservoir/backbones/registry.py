"""The families of backbones by name: those of this folder, those of `reservoir.paper`, and those of other packages.

Another installed package adds a family by an entry point of the group `GROUP`, which names a `Family`;
a program adds one by `register`.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from reservoir.backbone_names import GROUP, add_name, plugins
from reservoir.backbones import esn, gpt2, kernels, published
from reservoir.backbones.family import Family
from reservoir.errors import as_input_error

REGISTERING = ("reservoir.paper.families",)  # modules of this package that call `register`

# The families that are known, by name. `register` adds others.
_families: dict[str, Family] = {
    family.name: family for family in (gpt2.GPT2, *published.FAMILIES, esn.ESN, kernels.KERNELS)
}


def register(family: Family) -> None:
    """Make a family known by its name, which becomes the name of a backbone with the default configuration.

    Parameters
    ----------
    family : Family
        The family; ``family.config`` builds its configuration.

    Raises
    ------
    ValueError
        If another family has this name.
    """
    registered = _families.setdefault(family.name, family)
    if registered is not family:  # registering the same family again changes nothing
        raise ValueError(f"a family of backbones is already called {family.name!r}")
    # Models of transformers have no configuration here: they are loaded by their own names, such as those on the hub.
    if family.config is not None:
        add_name(family.name)


@cache
def _load() -> None:
    """Register the other families of this package and those of other installed packages, in the first call alone."""
    for module in REGISTERING:
        import_module(module)
    # All of them are loaded, whatever name is asked for, so that no name in a file decides what is imported.
    for plugin in plugins():
        problem = (
            f"backbone {plugin.name!r}: {plugin.value}, of another installed package, cannot be loaded"
        )
        with as_input_error(problem, "update or uninstall that package"):
            family = plugin.load()
            if not isinstance(family, Family) or family.name != plugin.name:
                raise ValueError(f"the entry point of {GROUP} is not a Family of this name")
            register(family)


def families() -> Mapping[str, Family]:
    """Return every family by the ``model_type`` of its configurations; the first call loads those of other packages."""
    _load()
    return _families

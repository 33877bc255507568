"""Classes by name: ours by their class name, the user's by `file.py:Class` or `package.module:Class`."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fedstill.common.errors import FedstillError
from fedstill.common.trust import check_trust

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence for a mistyped name: the nearest known name, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    if close:
        return f"did you mean {next(n for n in names if n.lower() == close[0])!r}?"
    return f"known: {', '.join(names)}." if names else ""


def absolute(name: str) -> str:
    """`file.py:Class` with the file's absolute path, so that any process finds it; other names unchanged."""
    file, _, class_name = name.rpartition(":")
    return f"{Path(file).resolve()}:{class_name}" if file.endswith(".py") else name


def is_own(name: str) -> bool:
    """Whether the name is of a user's class; `minilm[:3]` is not."""
    return ":" in name.replace("[:", "")


def name_of(cls: type) -> str:
    """The name that finds a class again, in other processes too: ours by its own name, others by their file or package.

    A class of a notebook is in no file, and is refused.
    """
    if cls.__module__.startswith("fedstill."):
        return cls.__name__
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    if cls.__qualname__ != cls.__name__ or not file.endswith(".py"):
        raise FedstillError(
            f"{cls.__qualname__} cannot be found again by other processes: write it at the top level of a file, and "
            f"import it from there or name it as `file.py:{cls.__name__}`."
        )
    return f"{cls.__module__ if '.' in cls.__module__ else Path(file).resolve()}:{cls.__name__}"


def own_files(settings: Any) -> list[Path]:
    """The files of all classes that settings name as `file.py:Class`, each once."""
    if isinstance(settings, Mapping):
        settings = list(settings.values())
    if isinstance(settings, list):
        return list(dict.fromkeys(file for part in settings for file in own_files(part)))
    name = settings.rpartition(":")[0] if isinstance(settings, str) else ""
    return [Path(name)] if name.endswith(".py") and Path(name).is_file() else []


_allowed: Mapping[str, str] | None = None


def allow_only(own: Mapping[str, str] | None) -> None:
    """From now on this process loads only the classes in this table (class name -> path); None: no limit.

    A federation's job names classes; which file they are loaded from is decided only by the site.
    """
    global _allowed
    _allowed = own


def own_class(path: str) -> type:
    """The class behind `file.py:Class` or `package.module:Class`."""
    if _allowed is not None:
        name = path.rpartition(":")[2]
        if name not in _allowed:
            raise FedstillError(f"{path} is not allowed here: to allow it, name {name} under `own:` in your own file.")
        path = _allowed[name]
    else:
        check_trust(path)
    module_name, _, class_name = path.rpartition(":")
    try:
        module = _module_from_file(Path(module_name)) if module_name.endswith(".py") else _module(module_name)
    except Exception as error:  # the user's code may raise anything while it is loaded
        raise FedstillError(f"{path}: {module_name} could not be loaded ({type(error).__name__}: {error}).") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise FedstillError(f"{path}: {module_name} has no class {class_name!r}; {nearest(class_name, classes)}")
    return found


def _module(name: str) -> Any:
    if not name or name.startswith("."):
        raise ImportError("write file.py:Class or package.module:Class")
    return importlib.import_module(name)


def _module_from_file(file: Path) -> Any:
    if not file.is_file():
        raise FileNotFoundError(f"there is no such file; the current folder is {Path.cwd()}")
    name = f"fedstill_own_{hashlib.sha256(f'{file.resolve()} {file.stat().st_mtime_ns}'.encode()).hexdigest()[:16]}"
    if name in sys.modules:  # loaded once, so that its classes are the same everywhere
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def classes_in(package: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """The classes of that kind in a package's modules, by name; the base itself is not among them."""
    found: dict[str, type[T]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, base) and value is not base:
                found[value.__name__] = value
    return found


def check_options(cls: type, options: Mapping[str, Any], fixed: Collection[str] = ()) -> None:
    """Refuse options that the class's constructor does not take; the message names the nearest one that it does."""
    parameters = inspect.signature(cls).parameters
    taken = [name for name in parameters if name not in fixed]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for option in options:
        if option in fixed or (option not in taken and not takes_any):
            how = (
                "is a field of a frozen dataclass, with its type"
                if is_dataclass(cls)
                else "is an argument of `__init__`"
            )
            others = nearest(option, taken) or f"it has none: an option {how}, as in `width: int = 8`."
            raise FedstillError(f"{cls.__name__} has no option {option!r}; {others}")

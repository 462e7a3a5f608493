"""Importing heavy libraries quickly; holds no library and no model.

Torch, transformers and LanceDB are most of a cold start. Two things about it can be helped from outside.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

REST_CLIENT = "lance_namespace_urllib3_client.api"


@contextmanager
def collector_paused() -> Iterator[None]:
    """Import and load without the cyclic garbage collector, and keep what came out of its later rounds.

    The libraries make about a million objects that live as long as the process. The collector would walk all
    of them dozens of times while they come, a fifth of the processor time of a cold start. One that the
    caller has turned off stays off, and nothing is set aside.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_lancedb() -> ModuleType:
    """Import LanceDB without the client of its REST service, which local tables never touch.

    Pydantic compiles every signature of that client on import, 0.5 s of LanceDB's 1.2 s. Its classes are
    stand-ins instead, which load the real ones when one is made.
    """
    if "lancedb" in sys.modules:
        return sys.modules["lancedb"]
    finder = _StandIns()
    sys.meta_path.insert(0, finder)
    try:
        with collector_paused():
            return import_module("lancedb")
    finally:
        sys.meta_path.remove(finder)
        for name in finder.served:
            sys.modules.pop(name, None)


class _StandIns(MetaPathFinder, Loader):
    """Serves modules of the REST client in which every name is a class that stands in for the real one."""

    def __init__(self) -> None:
        self.served: list[str] = []

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != REST_CLIENT and not fullname.startswith(f"{REST_CLIENT}."):
            return None
        self.served.append(fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _stand_in


def _stand_in(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)

    def make_real(_cls: type, *args: Any, **kwargs: Any) -> object:
        return getattr(import_module(REST_CLIENT), name)(*args, **kwargs)

    return type(name, (), {"__new__": make_real})

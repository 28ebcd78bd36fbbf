"""Coroutine tests run on a fresh event loop each, so that no task or timer outlives its test unseen."""

from __future__ import annotations

import asyncio
import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(function).parameters}
    asyncio.run(asyncio.wait_for(function(**arguments), 60), debug=False)
    return True

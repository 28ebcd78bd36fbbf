"""The checks, in the order in which they are told."""

from __future__ import annotations

from maple.doctor.check import Check
from maple.doctor.compute import EngineCheck, KernelCheck, TorchCheck
from maple.doctor.host import CompilerCheck, ProcessorCheck, PythonCheck
from maple.doctor.model import HubCheck, MemoryCheck, ModelCheck
from maple.doctor.places import CacheCheck, SessionCheck, StoreCheck
from maple.doctor.serving import KeyCheck, PluginCheck, PortCheck

CHECKS: tuple[type[Check], ...] = (
    PythonCheck,
    ProcessorCheck,
    KernelCheck,
    EngineCheck,
    CompilerCheck,
    TorchCheck,
    ModelCheck,
    HubCheck,
    MemoryCheck,
    CacheCheck,
    SessionCheck,
    StoreCheck,
    PluginCheck,
    KeyCheck,
    PortCheck,
)

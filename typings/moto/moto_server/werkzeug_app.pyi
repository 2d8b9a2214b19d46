# The part of moto that tests use.
from collections.abc import Callable, Iterable
from typing import Any

class DomainDispatcherApplication:
    def __init__(self, create_app: Callable[..., object]) -> None: ...
    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]: ...

def create_backend_app(service: str) -> object: ...

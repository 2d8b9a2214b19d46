from collections.abc import Callable
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

class AsyncResult(Generic[T_co]):
    def get(self, block: bool = ..., timeout: float | None = ...) -> T_co: ...
    def rawlink(self, callback: Callable[[AsyncResult[T_co]], object]) -> None: ...

class SequentialThreadingHandler:
    def async_result(self) -> AsyncResult[Any]: ...
    def select(
        self, *args: object, **kwargs: object
    ) -> tuple[list[object], list[object], list[object]]: ...

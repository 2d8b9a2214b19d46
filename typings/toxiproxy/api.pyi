from typing import Protocol

class _Response(Protocol):
    status_code: int
    content: bytes

class APIConsumer:
    host: str
    port: int
    @classmethod
    def get(cls, url: str, *, timeout: float) -> _Response: ...
    @classmethod
    def post(cls, url: str, *, json: object = ..., timeout: float) -> _Response: ...
    @classmethod
    def delete(cls, url: str, *, timeout: float) -> _Response: ...

def validate_response(response: _Response) -> _Response: ...

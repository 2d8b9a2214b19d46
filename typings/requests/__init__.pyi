# The part of requests that Octavo's chaos code uses.
class RequestException(OSError): ...

class Response:
    status_code: int
    content: bytes

def patch(url: str, *, json: object, timeout: float) -> Response: ...

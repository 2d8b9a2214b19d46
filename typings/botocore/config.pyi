from collections.abc import Mapping

class Config:
    def __init__(
        self,
        *,
        connect_timeout: float = ...,
        read_timeout: float = ...,
        retries: Mapping[str, object] = ...,
        s3: Mapping[str, object] = ...,
    ) -> None: ...

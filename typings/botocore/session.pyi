from botocore.client import BaseClient
from botocore.config import Config

class Session:
    def create_client(
        self,
        service_name: str,
        *,
        region_name: str | None = ...,
        endpoint_url: str | None = ...,
        config: Config | None = ...,
    ) -> BaseClient: ...

def get_session() -> Session: ...

from typing import TypedDict

class ResponseMetadata(TypedDict, total=False):
    HTTPStatusCode: int

class Response(TypedDict, total=False):
    ResponseMetadata: ResponseMetadata

class BotoCoreError(Exception): ...

class ClientError(Exception):
    response: Response

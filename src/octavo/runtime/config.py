"""Server settings: frozen, validated, unknown keys refused with a suggestion (interface §5, U4).

Values come from keyword arguments, then from the environment (prefix of the subclass).
pydantic-settings does the merging; this module turns its complaints into ConfigError with a hint.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from octavo.runtime.errors import ConfigError
from octavo.runtime.suggestion import did_you_mean

T = TypeVar("T", bound="FrozenSettings")


class FrozenSettings(BaseSettings):
    """Base of every server's configuration.

    Subclasses declare fields with defaults and units in names. In the environment the word `none`
    stands for None where a field allows it.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="OCTAVO_", env_parse_none_str="none"
    )

    @classmethod
    def load(cls: type[T], **values: Any) -> T:
        """Build and validate; None means "not given". Raises ConfigError naming the field."""
        given = {name: value for name, value in values.items() if value is not None}
        for name in given:
            if name not in cls.model_fields:
                raise ConfigError(
                    f"unknown setting {name!r}", hint=did_you_mean(name, cls.model_fields)
                )
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or cls.__name__
            raise ConfigError(f"setting {where}: {first['msg']}") from error

"""ParamSpec: what one parameter is called, takes and means. No ROS here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from photon_ros.core.errors import InputError

Value: TypeAlias = bool | int | float | str | tuple[str, ...]


_KIND_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One parameter.

    Attributes:
        field_name: attribute of NodeConfig that holds it.
        name: name of the ROS parameter.
        default: value without any setting; its type is the parameter's type.
        description: what it does, with the unit.
        read_only: True when it can only be given at the start.
        minimum, maximum: bounds of a number, both included.
        choices: the allowed strings; empty allows any.
    """

    field_name: str
    name: str
    default: Value
    description: str
    read_only: bool
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]

    def parse(self, value: Any) -> Value:
        """Return ``value`` in the parameter's type; raise InputError with the reason.

        A whole number is taken where a real one is asked for, and an empty list of any type
        where a list of strings is: ROS cannot tell the type of an empty list.
        """
        parsed = self._typed(value)
        if isinstance(parsed, (int, float)) and not isinstance(parsed, bool):
            self._check_bounds(parsed)
        if self.choices:
            for word in parsed if isinstance(parsed, tuple) else (str(parsed),):
                if word not in self.choices:
                    allowed = ", ".join(self.choices)
                    raise InputError(f"{self.name}: {word!r} is not one of {allowed}")
        return parsed

    def _typed(self, value: Any) -> Value:
        wanted = type(self.default)
        if wanted is tuple:
            if isinstance(value, str) or not hasattr(value, "__iter__"):
                raise InputError(f"{self.name} must be a list of strings, got {value!r}")
            items = tuple(value)
            if not all(isinstance(item, str) for item in items):
                raise InputError(f"{self.name} must be a list of strings, got {list(items)!r}")
            return items
        if wanted is float and type(value) is int:
            return float(value)
        if type(value) is not wanted:
            raise InputError(f"{self.name} must be {_KIND_WORDS[wanted]}, got {value!r}")
        checked: Value = value
        return checked

    def _check_bounds(self, number: float) -> None:
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        if not low <= number <= high:
            raise InputError(f"{self.name} must be from {low:g} to {high:g}, got {number:g}")


def param(
    name: str,
    default: Value,
    description: str,
    *,
    read_only: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field that describes one parameter; see :class:`ParamSpec`."""
    settings = {
        "name": name,
        "default": default,
        "description": description,
        "read_only": read_only,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
    }
    return field(default=default, metadata=settings)

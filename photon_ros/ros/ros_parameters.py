"""NodeConfig as ROS parameters: declaration with descriptors, and checked changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import ParameterException
from rclpy.node import Node
from rclpy.parameter import Parameter

from photon_ros.core.errors import InputError
from photon_ros.ros.compat import given_parameters
from photon_ros.ros.param_spec import ParamSpec
from photon_ros.ros.params import NodeConfig, all_specs

ROS_TYPES = {
    bool: Parameter.Type.BOOL,
    int: Parameter.Type.INTEGER,
    float: Parameter.Type.DOUBLE,
    str: Parameter.Type.STRING,
    tuple: Parameter.Type.STRING_ARRAY,
}


def descriptor_of(spec: ParamSpec) -> ParameterDescriptor:
    """Return the descriptor that tells ROS tools what the parameter is and takes."""
    kind = type(spec.default)
    descriptor = ParameterDescriptor(
        name=spec.name,
        type=ROS_TYPES[kind].value,
        description=spec.description,
        read_only=spec.read_only,
        # A whole number for a real one and an empty list come with another type; ParamSpec
        # checks types in place of rclpy.
        dynamic_typing=kind in (float, tuple),
    )
    if spec.choices:
        descriptor.additional_constraints = f"one of {', '.join(spec.choices)}"
    if spec.minimum is not None and spec.maximum is not None:
        if kind is int:
            descriptor.integer_range.append(
                IntegerRange(from_value=int(spec.minimum), to_value=int(spec.maximum), step=0)
            )
        else:
            descriptor.floating_point_range.append(
                FloatingPointRange(from_value=spec.minimum, to_value=spec.maximum, step=0.0)
            )
    return descriptor


def declare_config(node: Node) -> NodeConfig:
    """Declare every parameter on ``node`` and return the values it was started with.

    Raises:
        InputError: a given value is not allowed, or a given name is no parameter of the node.
    """
    # rclpy has declared its own by now, use_sim_time among them.
    ours = {
        name: value
        for name, value in given_parameters(node).items()
        if not node.has_parameter(name)
    }
    # First, for its reasons are clearer than rclpy's; and it tells the cameras.
    given = NodeConfig().changed(ours)
    values = {}
    try:
        for spec in all_specs(given.cameras):
            value = list(spec.default) if isinstance(spec.default, tuple) else spec.default
            values[spec.name] = node.declare_parameter(spec.name, value, descriptor_of(spec)).value
    except ParameterException as error:
        raise InputError(str(error)) from error
    return NodeConfig().changed(values)


def set_callback(
    current: Callable[[], NodeConfig],
    check: Callable[[NodeConfig], None],
    apply: Callable[[NodeConfig], None],
) -> Callable[[Sequence[Parameter]], SetParametersResult]:
    """Return the on-set callback: all changes of one call together, or none and the reason.

    Args:
        current: gives the config in force.
        check: raises InputError on a config that the loaded model cannot serve.
        apply: puts the new config in force.
    """

    def on_set(parameters: Sequence[Parameter]) -> SetParametersResult:
        known = current().values()
        changes = {item.name: item.value for item in parameters if item.name in known}
        try:
            config = current().changed(changes)
            if config != current():
                check(config)
                apply(config)
        except InputError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    return on_set

"""The ROS 2 side: the perception node, its parameters, messages in and out.

Nothing else in the package imports rclpy.
"""

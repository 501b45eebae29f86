"""The nouns everything else is made of: Frame, Request, Result, errors.

No torch and no ROS here, so that a tool which only reads results needs neither.
"""

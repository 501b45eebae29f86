"""Pipelined decoding. Knows no model, no skill and no ROS.

Read in this order: interfaces (what the engine calls), sequence, page_pool, decode_slot,
pipeline, scheduler, sampling, engine (the tick).
"""

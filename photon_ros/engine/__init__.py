"""Pipelined decoding. Knows no model, no skill and no ROS.

Read in this order: interfaces (what the engine calls), sequence and step, page_pool and
shared_places, scheduler, pipeline, lifecycle, engine (the tick); then what a step does: device,
decode_slot, step_inputs, forward, attention, sampler and sampling.
"""

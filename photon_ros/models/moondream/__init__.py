"""The Moondream family: a vision encoder, a text decoder and a region model.

Read in this order: config (sizes and ids), image (a picture becomes crops), vision, text and
region (the three networks), model (what the engine calls), weights and checkpoint (from disk).
"""

"""From parameters to an engine: what of it the parameters decide."""

from __future__ import annotations

import numpy as np
import pytest

from photon_ros.core.frame import Frame
from photon_ros.models.moondream.image import cut
from photon_ros.models.nano import load_nano
from photon_ros.ros.load import load_photon, resize_of
from photon_ros.ros.params import NodeConfig


@pytest.mark.parametrize(
    ("model", "resize", "wanted"),
    [
        ("nano", "auto", "fast"),
        ("nano", "exact", "exact"),
        ("vikhyatk/moondream2", "auto", "exact"),
        ("vikhyatk/moondream2", "fast", "fast"),
    ],
)
def test_auto_is_fast_only_where_its_accuracy_was_measured(
    model: str, resize: str, wanted: str
) -> None:
    assert resize_of(NodeConfig().changed({"model.path": model, "resize": resize})) == wanted


@pytest.mark.parametrize("resize", ["exact", "fast"])
def test_pictures_are_cut_as_the_parameter_says(resize: str) -> None:
    config = NodeConfig().changed({"resize": resize, "max_crops": 0})
    pixels = np.random.default_rng(2).integers(0, 255, (300, 400, 3), np.uint8)
    vision = load_nano().config.vision
    ways = {way: cut(pixels, vision, None, way).pixels for way in ("exact", "fast")}
    assert not np.array_equal(ways["exact"], ways["fast"])
    photon = load_photon(config, "cpu")
    try:
        crops = photon._crops.crops_of(photon._crops.key_of(Frame(pixels), None)).result(10.0)
        assert np.array_equal(crops.pixels, ways[resize])
    finally:
        photon.close()

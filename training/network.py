"""The modules of nano in training: the family's own, plus three heads that are thrown away."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.region import RegionModel
from photon_ros.models.moondream.text import TextDecoder
from photon_ros.models.moondream.vision import VisionEncoder
from training.dense import DenseHead
from training.initial import initialise_vision
from training.placing import OutlineHead, PlaceHead

# Parts that only training has.
HEADS = ("dense.", "place.", "outline.")


class Network(nn.Module):
    """Vision encoder, text decoder and region model, and three heads for training.

    The state dict without the heads has the keys of the family's checkpoints.
    """

    def __init__(self, config: MoondreamConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionEncoder(config.vision)
        self.text = TextDecoder(config.text)
        self.region = RegionModel(config.region)
        self.dense = DenseHead(config.vision.proj_out_dim)
        self.place = PlaceHead(config.vision.proj_out_dim)
        self.outline = OutlineHead(config.vision.proj_out_dim)
        self._initialise()

    def _initialise(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.5 * module.in_features**-0.5)
                nn.init.zeros_(module.bias)
                if name.endswith(("attn.proj", "mlp.fc2")):
                    nn.init.normal_(module.weight, std=0.1 * module.in_features**-0.5)
        initialise_vision(self.vision)
        nn.init.normal_(self.text.wte, std=0.5)
        # Waves of up to about ten periods over the image: fine enough for a bin of 1/256.
        nn.init.normal_(self.region.coord_features, std=4.0)
        nn.init.normal_(self.region.size_features, std=4.0)

    def embed_image(
        self, crops: Tensor, num_crops: list[int], tilings: list[tuple[int, int]]
    ) -> Tensor:
        """Return (frames, P, D) of uint8 crops (N, crop, crop, 3)."""
        pixels = crops.permute(0, 3, 1, 2).float().div(127.5).sub(1.0)
        if max(num_crops) == 1:  # one product instead of one a frame
            features = self.vision.encode(pixels)
            return self.vision.project(torch.cat((features, features), dim=-1))
        embeds: Tensor = self.vision(pixels, num_crops, tilings)
        return embeds

    def checkpoint(self) -> dict[str, Tensor]:
        """Return the weights under the family's names, without the heads."""
        state = self.state_dict()
        return {f"model.{key}": state[key] for key in state if not key.startswith(HEADS)}

    def start_from(self, weights: dict[str, Tensor]) -> None:
        """Take every weight but the heads', as :func:`training.state.read_weights` gives them.

        The heads become 0: while they say nothing yet, they must not pull at what is learned.
        """
        self.load_state_dict(weights, strict=False)
        for name, param in self.named_parameters():
            if name.startswith(HEADS):
                nn.init.zeros_(param)

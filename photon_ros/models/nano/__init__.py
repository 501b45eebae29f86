"""nano: the small embedded model. The architecture of the Moondream family, its own weights.

It knows a closed vocabulary (:mod:`photon_ros.models.nano.vocabulary`) and was trained on
rendered scenes and on one film of people; ``docs/nano.md`` is its model card.
"""

from photon_ros.models.nano.checkpoint import load_nano

__all__ = ["load_nano"]

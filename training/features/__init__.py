"""Frozen features: what lies below the memory layers, and the teacher, cached or computed at each step.

`FeatureCache` and `LiveFeatures` answer alike; a training step takes either.
"""

from training.features.cache import FeatureCache, build_cache
from training.features.live import LiveFeatures, Targets, Teacher
from training.features.ragged import Ragged
from training.features.texts import Texts

__all__ = ["FeatureCache", "LiveFeatures", "Ragged", "Targets", "Teacher", "Texts", "build_cache"]

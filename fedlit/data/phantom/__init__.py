"""PhantomCXR: synthetic chest X-rays of several hospitals, drawn from a seed.

``hospitals`` defines the hospitals, ``patients`` samples people and findings, ``drawing`` turns them into images,
``exposure`` adds each hospital's image style, and ``phantom`` is the data module.
"""

from fedlit.data.phantom.hospitals import FINDINGS, PREVALENCE, Hospital, default_hospitals
from fedlit.data.phantom.patients import sample_cohort
from fedlit.data.phantom.phantom import PhantomCXR, render

__all__ = ["FINDINGS", "PREVALENCE", "Hospital", "PhantomCXR", "default_hospitals", "render", "sample_cohort"]

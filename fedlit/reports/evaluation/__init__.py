"""Evaluation of one method: calibration, groups of patients and operating points, of ``fedlit evaluate``."""

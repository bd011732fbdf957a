"""Drawing of PhantomCXR: frontal chest images from anatomy and severity of findings, a batch at a time.

Coordinates are fractions of the image's side: x grows to the right, y downwards. Bright is dense. The patient's right
is on the left of the image, as in a radiograph. Shapes are made from functions of the row, ``[N, H, 1]``, and of the
column, ``[N, 1, W]``, so much of the work is done on one-dimensional arrays.

Pixels are computed by ``+ - * /``, ``abs``, ``floor``, ``min`` and ``max`` only. These are exactly rounded, so the
bytes of a pixel do not depend on the number of images drawn together, on threads or on the processor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedlit.data.phantom.hospitals import FINDINGS
from fedlit.data.phantom.patients import GRID, Anatomy, Array

_COLUMN = {name: index for index, name in enumerate(FINDINGS)}


def draw_images(anatomy: Anatomy, severity: Array, size: int) -> Array:
    """Draw images before they are exposed: tissue densities from about 0 (air) to 1 (metal).

    Args:
        anatomy: Anatomy of N images.
        severity: Severity of each finding, ``[N, F]`` float32 in the order of ``FINDINGS``: 0 for absent, else up to 1.
        size: Height and width of the images in pixels.

    Returns:
        ``[N, size, size]`` float32.
    """
    return _Canvas(anatomy, severity.astype(np.float32), size).picture()


def _ramp(distance: Array, edge: float | Array) -> Array:
    """Return 0 outside and 1 inside of a border ``edge`` wide; change ``distance`` (positive inside) in place."""
    distance *= 1 / edge
    distance += 0.5
    return np.clip(distance, 0, 1, out=distance)


def _line(position: Array, course: Array | int, half: float | Array, edge: float | Array) -> Array:
    """Return 1 within ``half`` of a course, 0 outside of a border ``edge`` wide."""
    distance = np.abs(position - course)
    return _ramp(np.subtract(half, distance, out=distance), edge)


def _bump(square: Array) -> Array:
    """Return ``(1 - r^2)^2`` inside the unit circle, a blob that fades to its rim; change r^2 in place."""
    np.minimum(square, 1, out=square)
    np.subtract(1, square, out=square)
    square *= square
    return square


class _Canvas:
    """One batch while it is drawn, in which numbers are ``[N, 1, 1]`` and images ``[N, H, W]``.

    Attributes:
        s, y: Signed distance from the midline, ``[N, 1, W]``, and height, ``[N, H, 1]``, before magnification.
        u: Distance from the midline, ``[N, 1, W]``: about 1 at the inner border of the ribs.
        v: Height in the lung, ``[N, H, 1]``: 0 at the apex, 1 at the costophrenic angle.
        floor: Lower border of the lungs, ``[N, 1, W]``: diaphragm or fluid level.
        inner, outer: Borders of the lungs in units of ``u``, ``[N, H, 1]``.
    """

    def __init__(self, anatomy: Anatomy, severity: Array, size: int):
        self.anatomy, self.severity, self.size = anatomy, severity, size
        self.edge = np.float32(max(1.2 / size, 0.012))
        a = {name: getattr(anatomy, name)[:, None, None] for name in ("centre", "top", "zoom", "width", "length")}
        sick = {name: severity[:, k, None, None] for name, k in _COLUMN.items()}
        grid = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
        self.y = (grid[None, :, None] - 0.5) / a["zoom"] + 0.5
        side_of_band = np.where(self._spot("Atelectasis", 0) < 0.5, np.float32(-1), np.float32(1))
        # Volume loss pulls the mediastinum to the side of the atelectasis.
        self.s = (grid[None, None, :] - a["centre"]) / a["zoom"] - side_of_band * 0.035 * sick["Atelectasis"]
        self.left = self.s > 0
        hyper = sick["Emphysema"]
        width = a["width"] * (1 + 0.07 * hyper)
        self.u = np.abs(self.s) / width
        self.top = a["top"] - 0.02 * hyper
        length = a["length"] * (1 + 0.09 * hyper)
        self.v = (self.y - self.top) / length
        base = self.top + length
        on_band_side = np.where(side_of_band > 0, self.left, ~self.left)
        raised = np.where(self.left, np.float32(0), np.float32(0.02)) + 0.075 * sick["Atelectasis"] * on_band_side
        dome = anatomy.dome[:, None, None] * (1 - 0.8 * hyper)
        bow = (self.u - 0.42) / 0.58
        self.floor = base - raised - dome * np.maximum(1 - bow * bow, 0) + 0.05 * np.maximum(bow - 0.55, 0)
        self._pour_fluid(base, sick["Effusion"])
        self._box_lungs()

    def _spot(self, name: str, axis: int) -> Array:
        return self.anatomy.spot[:, _COLUMN[name], axis, None, None]

    def _shape(self, name: str, axis: int) -> Array:
        return self.anatomy.shape[:, _COLUMN[name], axis, None, None]

    def _pour_fluid(self, base: Array, severity: Array) -> None:
        """Raise the floor of the lungs to a fluid level that climbs at the lateral wall (the meniscus)."""
        side = self._spot("Effusion", 0)
        wet = np.where(self.left, side < 0.6, side > 0.4)  # both sides in a fifth of the patients
        lateral = np.clip((self.u - 0.25) / 0.75, 0, 1)
        level = base - severity * (0.02 + 0.16 * severity + 0.17 * lateral * lateral)
        self.floor = np.where(wet & (severity > 0), np.minimum(self.floor, level), self.floor)

    def _box_lungs(self) -> None:
        """Set the inner and outer border of the lungs as functions of the row."""
        v = np.clip(self.v, 0, 1)
        cap = 1 - v
        cap2 = cap * cap
        self.outer = 0.97 * (1 - cap2 * cap2 * (0.45 + 0.35 * cap2)) - 0.02 * v
        self.inner = 0.10 + 0.10 * (v - 0.3) * (v - 0.3)
        self.apex = np.clip(self.v / 0.05, 0, 1)

    def picture(self) -> Array:
        """Draw all layers, from the back to the front."""
        picture = self._trunk()
        air = self._air()
        air *= self._lungs()
        picture -= air
        for layer in (self._ribs, self._clavicles, self._centre, self._heart, self._devices):
            layer(picture)
        return picture

    def _trunk(self) -> Array:
        """Neck, shoulders and trunk; the abdomen is denser."""
        a = self.anatomy
        rise = np.clip((self.y - 0.03) / 0.13, 0, 1)
        half = 0.16 + (a.shoulder[:, None, None] - 0.16) * rise * (2 - rise)
        picture = _ramp(half - np.abs(self.s), 0.03)
        abdomen = np.clip((self.v - 0.85) / 0.25, 0, 1)
        across = 1.05 - 0.22 * self.u * self.u
        picture *= (a.tissue[:, None, None] + 0.10 * abdomen) * across
        return picture

    def _lungs(self) -> Array:
        """Return where there is lung, ``[N, H, W]`` from 0 to 1."""
        lungs = _ramp(self.u - self.inner, 0.08)
        lungs *= _ramp(self.outer - self.u, 2.5 * self.edge)
        lungs *= _ramp(self.floor - self.y, 1.5 * self.edge)
        lungs *= self.apex
        return lungs

    def _mottle(self) -> Array:
        """Smooth texture of about unit variance: quadratic B-splines over the control points."""
        points, cells = self.anatomy.mottle, GRID - 2
        position = (np.arange(self.size, dtype=np.float32) + np.float32(0.5)) * np.float32(cells / self.size)
        cell = np.minimum(position.astype(np.int64), cells - 1)
        t = position - cell.astype(np.float32)
        taps = ((1 - t) * (1 - t) * 0.5, 0.5 + t - t * t, t * t * 0.5)
        rows = sum(points[:, cell + k, :] * tap[None, :, None] for k, tap in enumerate(taps))
        out = rows[:, :, cell] * taps[0]
        out += rows[:, :, cell + 1] * taps[1]
        out += rows[:, :, cell + 2] * taps[2]
        out *= 1.8
        return out

    def _air(self) -> Array:
        """Return how much darker than soft tissue the lungs are, with every finding inside them."""
        a, mottle = self.anatomy, self._mottle()
        hyper = self.severity[:, _COLUMN["Emphysema"], None, None]
        air = mottle * (-0.022 * (1 - 0.5 * hyper))
        # Vessels fan out from the hila, so lungs are brighter towards the midline and the base.
        root = np.maximum(1 - self.u / 0.75, 0) * a.hilum[:, None, None] * (1 - 0.5 * hyper)
        level = (self.v - 0.48) / 0.42
        air -= root * np.maximum(1 - level * level, 0)
        air += (a.aeration[:, None, None] + 0.085 * hyper) * (1.02 - 0.10 * self.v)
        self._edema(air, mottle)
        self._consolidation(air, mottle)
        self._atelectasis(air)
        self._ball(air, "Mass", 0.080, 0.045, 0.38)
        self._ball(air, "Nodule", 0.038, 0.018, 0.46)
        self._pneumothorax(air)
        return air

    def _present(self, name: str) -> tuple[NDArray[np.int64], Array]:
        severity = self.severity[:, _COLUMN[name]]
        which = np.flatnonzero(severity > 0)
        return which, severity[which, None, None]

    def _edema(self, air: Array, mottle: Array) -> None:
        """Haze around both hila, like wings."""
        which, severity = self._present("Edema")
        across, down = (self.u[which] - 0.34) / 0.52, (self.v[which] - 0.50) / 0.46
        haze = _bump(across * across + down * down)
        haze *= 0.75 + 0.25 * mottle[which]
        haze *= 0.03 + 0.29 * severity
        air[which] -= haze

    def _consolidation(self, air: Array, mottle: Array) -> None:
        """A patchy opacity with a ragged border in one zone of one lung."""
        which, severity = self._present("Consolidation")
        side = np.where(self._spot("Consolidation", 0)[which] < 0.5, np.float32(-1), np.float32(1))
        x = side * (0.42 + 0.28 * self._spot("Consolidation", 1)[which]) + np.float32(0.10) * (side > 0)
        y = 0.30 + 0.50 * self._spot("Consolidation", 2)[which]
        radius = 0.26 + 0.14 * self._shape("Consolidation", 0)[which]
        flat = 0.62 + 0.2 * self._shape("Consolidation", 1)[which]
        across = (np.where(self.left[which], self.u[which], -self.u[which]) - x) / (1.15 * radius)
        down = (self.v[which] - y) / (radius * flat)
        patch = across * across + down * down
        patch += 0.22 * mottle[which]
        np.clip(patch, 0, None, out=patch)
        patch = _bump(patch)
        np.minimum(patch * 1.8, 1, out=patch)
        patch *= 0.12 + 0.20 * severity
        air[which] -= patch

    def _atelectasis(self, air: Array) -> None:
        """A plate of collapsed lung: a thin sloping band; the diaphragm, raised by it, is in ``floor``."""
        which, severity = self._present("Atelectasis")
        left = np.where(self._spot("Atelectasis", 0)[which] < 0.5, ~self.left[which], self.left[which])
        slope = 0.24 * (self._shape("Atelectasis", 0)[which] - 0.5)
        height = 0.62 + 0.12 * self._spot("Atelectasis", 2)[which]
        course = (height + slope * (self.u[which] - 0.5)) * 0.68 + self.top[which]
        extent = np.clip((self.u[which] - 0.15) / 0.1, 0, 1) * np.clip((0.98 - self.u[which]) / 0.1, 0, 1) * left
        band = _line(self.y[which], course, 0.018 + 0.010 * self._shape("Atelectasis", 1)[which], 0.022)
        band *= extent * (0.14 + 0.20 * severity)
        air[which] -= band

    def _ball(self, air: Array, name: str, radius: float, spread: float, density: float) -> None:
        """A round opacity with a sharp border in one lung."""
        which, severity = self._present(name)
        side = np.where(self._spot(name, 0)[which] < 0.5, np.float32(-1), np.float32(1))
        x = side * (0.40 + 0.34 * self._spot(name, 1)[which]) + np.float32(0.10) * (side > 0)  # next to the heart
        x = x * self.anatomy.width[which, None, None]
        y = (0.20 + 0.56 * self._spot(name, 2)[which]) * 0.66 + self.top[which]
        size = radius + spread * (0.5 * severity + 0.5 * self._shape(name, 0)[which])
        across, down = (self.s[which] - x) / size, (self.y[which] - y) / size
        ball = across * across + down * down
        np.subtract(1, ball, out=ball)
        ball *= 1.1
        np.clip(ball, 0, 1, out=ball)
        ball *= (0.45 + 0.55 * severity) * density
        air[which] -= ball

    def _pneumothorax(self, air: Array) -> None:
        """The lung leaves the wall: a dark rim, widest at the apex, behind a thin bright pleural line."""
        which, severity = self._present("Pneumothorax")
        left = np.where(self._spot("Pneumothorax", 0)[which] < 0.5, ~self.left[which], self.left[which])
        v = np.clip(self.v[which], 0, 1)
        depth = (0.05 + 0.32 * severity) * (1 - 0.75 * v) + 0.03
        beyond = self.u[which] - (self.outer[which] - depth)
        line = _line(beyond, 0, 0.022, 0.03)
        line *= (0.05 + 0.10 * severity) * left
        rim = _ramp(beyond, 0.03)
        rim *= (0.05 + 0.15 * severity) * left
        rim -= line
        air[which] += rim

    def _ribs(self, picture: Array) -> None:
        """Bright bands: posterior ribs that fall towards the wall, fainter anterior ones that rise to it."""
        a = self.anatomy
        bone, spacing = a.bone[:, None, None], 1 / a.rib_spacing[:, None, None]
        slope, phase = a.rib_slope[:, None, None], a.rib_phase[:, None, None]
        cage = np.clip((self.v - 0.02) / 0.05, 0, 1) * np.clip((1.05 - self.v) / 0.25, 0, 1)
        side = np.clip((self.u - 0.15) / 0.1, 0, 1) * np.clip((1.06 - self.u) / 0.04, 0, 1)
        bow = self.u - 0.55
        for course, strength, offset in (
            (slope * (2.2 * bow * bow + 0.5 * self.u), 1.0, 0.0),
            (-1.6 * slope * self.u, 0.45, 0.37),
        ):
            band = (self.y * spacing) - (course * spacing + (phase + offset))
            band -= np.floor(band)
            band -= 0.5
            np.abs(band, out=band)
            band *= -4.5
            band += 1.35
            np.clip(band, 0, 1, out=band)
            band *= cage
            band *= side * (bone * strength)
            picture += band

    def _clavicles(self, picture: Array) -> None:
        course = self.top + 0.075 - 0.085 * self.u + 0.05 * self.u * self.u
        band = _line(self.y, course, 0.017, 0.02)
        side = np.clip((self.u - 0.1) / 0.05, 0, 1) * np.clip((1.05 - self.u) / 0.1, 0, 1)
        band *= side * (1.5 * self.anatomy.bone[:, None, None])
        picture += band

    def _centre(self, picture: Array) -> None:
        """Mediastinum with the aortic knob, the spine with its discs, and the windpipe."""
        a, v = self.anatomy, self.v
        knob = (v - 0.27) / 0.11
        knob = np.maximum(1 - knob * knob, 0) * 0.035
        half = a.mediastinum[:, None, None] * (0.72 + 0.45 * np.clip(v, 0, 1))
        shadow = _ramp(half + np.where(self.left, knob, 0) - np.abs(self.s), 0.035)
        shadow *= np.clip((1.10 - v) / 0.25, 0, 1) * np.clip((v + 0.15) / 0.25, 0, 1)
        self._fill(picture, a.tissue[:, None, None] + 0.13, shadow)
        disc = self.y * (1 / 0.062)
        disc = np.abs(disc - np.floor(disc) - 0.5)
        discs = 0.035 + 0.05 * np.clip(disc * 4 - 0.6, 0, 1)
        picture += _ramp(0.040 - np.abs(self.s), 0.025) * discs
        pipe = 0.15 * np.clip((0.36 - v) / 0.08, 0, 1)
        picture -= _ramp(0.020 - np.abs(self.s), 0.02) * pipe

    @staticmethod
    def _fill(picture: Array, density: Array, where: Array) -> None:
        """Raise the image to a density, in part where ``where`` is below 1."""
        filled = density - picture
        filled *= where
        picture += np.maximum(filled, 0, out=filled)

    def _heart(self, picture: Array) -> None:
        """An ellipse whose axis points to the left; larger with cardiomegaly, slimmer with emphysema."""
        a = self.anatomy
        large = self.severity[:, _COLUMN["Cardiomegaly"], None, None]
        hyper = self.severity[:, _COLUMN["Emphysema"], None, None]
        half = a.heart[:, None, None] * (1 + np.where(large > 0, 0.04 + 0.54 * large, 0) - 0.14 * hyper)
        tall = 0.155 * (1 + 0.16 * large)
        x = self.s - (0.30 * half + 0.012)
        y = self.y - (self.top + 0.745 * a.length[:, None, None] - 0.11 * large * tall)
        tilt = a.heart_tilt[:, None, None]
        along = x / half + y * (0.35 * tilt / 0.155)
        across = y / tall - x * (0.55 * tilt / 0.155)
        square = along * along
        across *= across
        square += across
        np.subtract(1.02, square, out=square)
        heart = _ramp(square, 0.26)
        self._fill(picture, a.tissue[:, None, None] + 0.10 + 0.06 * np.clip(1 - self.u * 2, 0, 1), heart)

    def _devices(self, picture: Array) -> None:
        """A pacemaker below the clavicle and its lead, down to the heart."""
        which, severity = self._present("Support Devices")
        side = np.where(self._spot("Support Devices", 0)[which] < 0.25, np.float32(-1), np.float32(1))
        x = side * (0.21 + 0.05 * self._spot("Support Devices", 1)[which])
        y = self.top[which] + 0.13 + 0.05 * self._spot("Support Devices", 2)[which]
        half = 0.034 + 0.014 * self._shape("Support Devices", 0)[which]
        edge = self.edge
        box = _ramp(half - np.abs(self.s[which] - x), edge) * _ramp(0.8 * half - np.abs(self.y[which] - y), edge)
        # The lead leaves the box, bends at the midline and ends in the heart.
        down = np.clip((self.y[which] - y) / 0.40, 0, 1)
        toward = 1 - down
        course = x * toward * toward * toward + 0.09 * down * down
        lead = _line(self.s[which], course, 0.009, edge)
        lead *= (self.y[which] > y) & (down < 1)
        metal = np.maximum(box, lead * 0.8)
        metal *= 0.10 + 0.80 * severity
        part = picture[which]
        part += metal * (1.05 - part)
        picture[which] = part

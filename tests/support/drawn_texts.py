"""Texts of figures, and whether everything that is drawn lies inside of the figure."""

from matplotlib.figure import Figure
from matplotlib.text import Text


def texts(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]


def lies_inside(figure: Figure) -> bool:
    figure.draw_without_rendering()
    drawn, (width, height), rim = figure.get_tightbbox(), figure.get_size_inches(), 0.01
    return min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) > -rim

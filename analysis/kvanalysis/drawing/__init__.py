"""Parts that figures share: styles, axes, grids of panels, files."""

"""What figures share: style, axes, grids of panels, files."""

"""HTML pages of runs and of folders of figures."""

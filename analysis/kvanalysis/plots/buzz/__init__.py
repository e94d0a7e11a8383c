"""The figures of BUZZ and the sizes of its cache."""

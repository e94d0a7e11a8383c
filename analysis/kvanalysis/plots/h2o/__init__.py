"""The figures of H2O."""

"""The pictures of docs/measures_explained.md, drawn from the sample trace or from small exact examples."""
